-- Adds events.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack, flat: id, delay in ms, payload of each
--   3 maximum number of events in the timer, dead letters included
-- Returns ["ok", number added], or ["full", number of events in the timer] if nothing was added. A known id is left
-- unchanged, so the call may be repeated.

begin()
local items, events_max = cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3])
local present = redis.call('HLEN', work_key)
local new, seen = {}, {}  -- `new`: places of the ids that are unknown; a repeated id counts once
for i = 1, #items, 3 do
  local id = items[i]
  if not seen[id] and redis.call('HEXISTS', work_key, id) == 0 then new[#new + 1] = i end
  seen[id] = true
end

if present + #new > events_max then
  add_count('refused', #new)
  commit()
  return cmsgpack.pack({'full', present})
end

for _, i in ipairs(new) do
  local id, due_ms = items[i], now_ceil_ms + items[i + 1]
  store_entry(id, {due_ms, 0, items[i + 2]})
  add_to_index(id, due_ms)
end
add_count('scheduled', #new)
commit()
return cmsgpack.pack({'ok', #new})
