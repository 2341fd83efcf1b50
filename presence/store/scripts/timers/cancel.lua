-- Removes an event, wherever it is.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id
-- Returns ["ok", 1], or ["ok", 0]: it was not there.

local id = ARGV[2]
local entry = read(id)
if entry then
  unplace(id, entry[1])
  remove(leased_key, id)
  remove(dead_key, id)
  forget(id)
  count('cancelled', 1)
  write_back()
end
return cmsgpack.pack({'ok', entry and 1 or 0})
