-- Gives events that wait another time.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack: ids   3 delay from now, ms
-- Returns ["ok", [ids of those that do not wait: not known, or handed out]].

local ids, due_ms = cmsgpack.unpack(ARGV[2]), from_ms + ARGV[3]
local others = {}

local function move(id, entry)
  local key = entry and place_of(entry[1])
  if not (entry and redis.call('ZSCORE', key, id)) then
    others[#others + 1] = id
    return
  end
  if place_of(due_ms) ~= key then unplace(id, entry[1]) end
  entry[1] = due_ms
  keep(id, entry)
  place(id, due_ms)
end

for first = 1, #ids, READ_AHEAD do
  local last = math.min(first + READ_AHEAD - 1, #ids)
  local found = redis.call('HMGET', work_key, unpack(ids, first, last))
  for i = first, last do move(ids[i], entry_of(found[i - first + 1])) end
end
write_back()
return cmsgpack.pack({'ok', others})
