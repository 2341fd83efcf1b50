-- Deletes follow-ups, armed ones too.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id of one follow-up; "": all of the users
--   3... uids; of an id its user
-- Returns MessagePack: ["ok", number of deleted follow-ups].

local wanted_id, uids = ARGV[2], {unpack(ARGV, 3)}

local n = 0
for _, uid in ipairs(uids) do
  n = n + delete_followups(uid, function(id) return wanted_id == '' or id == wanted_id end)
end
add_count('cancelled', n)
write_followups()
return cmsgpack.pack({'ok', n})
