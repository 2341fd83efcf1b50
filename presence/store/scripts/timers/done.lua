-- Removes handled events.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack, flat: id, due_ms, attempt of each, as they were handed out
-- Returns ["ok", number of those that still belonged to the caller].

begin()
local items = cmsgpack.unpack(ARGV[2])
local n = 0

local function delete_claimed(first, last)
  local ids = {}
  for i = first, last, 3 do ids[#ids + 1] = items[i] end
  local found = redis.call('HMGET', work_key, unpack(ids))
  local leases = redis.call('ZMSCORE', leased_key, unpack(ids))
  for place, id in ipairs(ids) do
    local i = first + 3 * (place - 1)
    if claimed_entry(found[place], leases[place], items[i + 1], items[i + 2]) then
      remove_member(leased_key, id)
      delete_entry(id)
      n = n + 1
    end
  end
end

for first = 1, #items, 3 * READ_AHEAD do delete_claimed(first, math.min(first + 3 * READ_AHEAD, #items + 1) - 1) end
add_count('done', n)
commit()
return cmsgpack.pack({'ok', n})
