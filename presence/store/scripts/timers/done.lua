-- Forgets events that were handled.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack, flat: id, due_ms, attempt of each, as they were handed out
-- Returns ["ok", of how many it was still the caller's to say].

local items = cmsgpack.unpack(ARGV[2])
local n = 0

local function settle(first, last)
  local ids = {}
  for i = first, last, 3 do ids[#ids + 1] = items[i] end
  local found = redis.call('HMGET', work_key, unpack(ids))
  local leases = redis.call('ZMSCORE', leased_key, unpack(ids))
  for place, id in ipairs(ids) do
    local i = first + 3 * (place - 1)
    if if_present(found[place], leases[place], items[i + 1], items[i + 2]) then
      remove(leased_key, id)
      forget(id)
      n = n + 1
    end
  end
end

for first = 1, #items, 3 * READ_AHEAD do settle(first, math.min(first + 3 * READ_AHEAD, #items + 1) - 1) end
count('done', n)
write_back()
return cmsgpack.pack({'ok', n})
