-- Gives an event that waits another time.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id   3 delay from now, ms
-- Returns ["ok", 1], or ["ok", 0]: it is not known, or was handed out.

local id = ARGV[2]
local entry = read(id)
local key = entry and place_of(entry[1])
local is_waiting = entry and redis.call('ZSCORE', key, id)
if is_waiting then
  local due_ms = from_ms + ARGV[3]
  if place_of(due_ms) ~= key then unplace(id, entry[1]) end
  entry[1] = due_ms
  keep(id, entry)
  place(id, due_ms)
  write_back()
end
return cmsgpack.pack({'ok', is_waiting and 1 or 0})
