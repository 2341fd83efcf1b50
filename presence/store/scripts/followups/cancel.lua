-- Deletes follow-ups, armed ones too.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id of one follow-up; "": all of the users
--   3... uids; of an id its user
-- Returns MessagePack: ["ok", number of deleted follow-ups].

local n = 0
for i = 3, #ARGV do
  n = n + delete_followups(ARGV[i], function(id) return ARGV[2] == '' or id == ARGV[2] end)
end
add_count('cancelled', n)
write_followups()
return cmsgpack.pack({'ok', n})
