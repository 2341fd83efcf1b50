-- Reads the state of a timer; changes nothing.
--
-- KEYS and ARGV 1: see prelude.lua
-- Returns ["ok", now_ms, next_ms, events, leased, dead, [field of counts, its number...]]. `next_ms`: nothing is due
-- before; 0: no event is waiting or leased. In a ring it may be too early, if the next SLOTS_A_CALL slots are empty.

local scores = {}
local function add_earliest(key)
  local found = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if found[2] then scores[#scores + 1] = tonumber(found[2]) end
end

-- Returns the beginning, in ms, of the first tick after the hand that has events.
local function next_tick_ms()
  local last = ring.hand + math.min(ring.slots, SLOTS_A_CALL)
  for tick = ring.hand + 1, last do
    local first = read_index('ZRANGE', ring.prefix .. tick % ring.slots, 0, 0, 'WITHSCORES')
    if first[2] and tonumber(first[2]) <= math.floor(tick / ring.slots) then return tick * ring.tick_ms end
  end
  return (last + 1) * ring.tick_ms
end

local events, leased, dead = redis.call('HLEN', work_key), redis.call('ZCARD', leased_key), redis.call('ZCARD', dead_key)
add_earliest(leased_key)
if not ring then
  add_earliest(due_key)
elseif events > leased + dead then
  scores[#scores + 1] = next_tick_ms()
end

local NO_TOTALS = {kind = true, walk = true, unfinished = true}
local fields, numbers = redis.call('HGETALL', counts_key), {}
for i = 1, #fields, 2 do
  if not NO_TOTALS[fields[i]] then
    numbers[#numbers + 1] = fields[i]
    numbers[#numbers + 1] = tonumber(fields[i + 1]) or 0
  end
end
local next_ms = 0
if #scores > 0 then next_ms = math.min(unpack(scores)) end
return cmsgpack.pack({'ok', now_ms, next_ms, events, leased, dead, numbers})
