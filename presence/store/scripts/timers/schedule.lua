-- Adds events.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack, flat: id, delay in ms, payload of each
--   3 events that the timer may hold, dead letters among them
-- Returns ["ok", added], or ["full", events that it holds]: then nothing was added. An id that is known is left as it
-- is, so the same call may come again.

local items, events_max = cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3])

-- How many of the ids are new; each counts once.
local function new_ids()
  local n, seen = 0, {}
  for i = 1, #items, 3 do
    local id = items[i]
    if not seen[id] and redis.call('HEXISTS', work_key, id) == 0 then n = n + 1 end
    seen[id] = true
  end
  return n
end

local held = redis.call('HLEN', work_key)
if held + #items / 3 > events_max then
  local wanted = new_ids()
  if held + wanted > events_max then
    count('refused', wanted)
    write_back()
    return cmsgpack.pack({'full', held})
  end
end

local n = 0
for i = 1, #items, 3 do
  local id, due_ms = items[i], from_ms + items[i + 1]
  if redis.call('HSETNX', work_key, id, cmsgpack.pack({due_ms, 0, items[i + 2]})) == 1 then
    place(id, due_ms)
    n = n + 1
  end
end
count('scheduled', n)
write_back()
return cmsgpack.pack({'ok', n})
