-- Changes the due time of waiting events.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack: ids   3 delay from now, ms
-- Returns ["ok", [ids that do not wait: unknown, handed out or dead]].

begin()
local ids, due_ms = cmsgpack.unpack(ARGV[2]), now_ceil_ms + ARGV[3]
local not_waiting = {}

local function move(id, entry)
  local key = entry and index_of(entry[1])
  if not (entry and read_index('ZSCORE', key, id)) then
    not_waiting[#not_waiting + 1] = id
    return
  end
  if index_of(due_ms) ~= key then remove_from_index(id, entry[1]) end
  entry[1] = due_ms
  store_entry(id, entry)
  add_to_index(id, due_ms)
end

for first = 1, #ids, READ_AHEAD do
  local last = math.min(first + READ_AHEAD - 1, #ids)
  local found = redis.call('HMGET', work_key, unpack(ids, first, last))
  for i = first, last do move(ids[i], unpack_entry(found[i - first + 1])) end
end
commit()
return cmsgpack.pack({'ok', not_waiting})
