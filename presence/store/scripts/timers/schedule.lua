-- Adds events.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack, flat: id, delay in ms, payload of each
--   3 maximum number of events in the timer, dead letters included
-- Returns ["ok", number added], or ["full", number of events in the timer] if nothing was added. A known id is left
-- unchanged, so the call may be repeated.

local items, events_max = cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3])

-- Returns how many of the ids are unknown; a repeated id counts once.
local function count_new_ids()
  local n, seen = 0, {}
  for i = 1, #items, 3 do
    local id = items[i]
    if not seen[id] and redis.call('HEXISTS', work_key, id) == 0 then n = n + 1 end
    seen[id] = true
  end
  return n
end

local present = redis.call('HLEN', work_key)
if present + #items / 3 > events_max then
  local new = count_new_ids()
  if present + new > events_max then
    add_count('refused', new)
    write_back()
    return cmsgpack.pack({'full', present})
  end
end

local n = 0
for i = 1, #items, 3 do
  local id, due_ms = items[i], now_ceil_ms + items[i + 1]
  if redis.call('HSETNX', work_key, id, cmsgpack.pack({due_ms, 0, items[i + 2]})) == 1 then
    add_to_index(id, due_ms)
    n = n + 1
  end
end
add_count('scheduled', n)
write_back()
return cmsgpack.pack({'ok', n})
