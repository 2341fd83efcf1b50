-- Takes follow-ups out, armed ones too.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 "": all of users, else the id of one
--   3... uids; of an id its own
-- Returns MessagePack: ["ok", how many].

local n = 0
for i = 3, #ARGV do
  n = n + leave(ARGV[i], function(id) return ARGV[2] == '' or id == ARGV[2] end)
end
count('cancelled', n)
write_all()
return cmsgpack.pack({'ok', n})
