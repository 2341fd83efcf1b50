-- Hands out events whose time has come: first those whose lease or pause is over, then those that wait, earliest first.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 how many at most   3 lease, ms   4 attempts, after which an event is a dead letter
-- Returns ["ok", now_ms, is_more, [id, due_ms, attempt, payload, of the next...]]. `is_more`: others may be due already.
-- O(log n + k) for k events; of a ring also the slots that have passed, SLOTS_A_CALL and a lap at most.

local limit, lease_ms, attempts_max = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

need_no_memory()

-- Takes those of a sorted set up to a score; false: others may be left.
local function take(key, score)
  local room = limit - looked_at
  local ids = room > 0 and redis.call('ZRANGEBYSCORE', key, '-inf', score, 'LIMIT', 0, room) or {}
  return hand_out(key, ids, lease_ms, attempts_max) and #ids < room
end

-- Moves the hand on to now, slot by slot; false: it is not there yet. Who comes after a lap or more looks at each slot
-- once, for the lap of now and all before.
local function walk()
  local last = math.floor(now_ms / ring.tick_ms)
  ring.hand = math.max(ring.hand, last - ring.slots)
  for _ = 1, SLOTS_A_CALL do
    if ring.hand >= last then return true end
    local tick = ring.hand + 1
    if not take(ring.prefix .. tick % ring.slots, math.floor(tick / ring.slots)) then return false end
    ring.hand = tick
  end
  return ring.hand >= last
end

local is_all = take(leased_key, now_ms)
if is_all then
  if ring then is_all = walk() else is_all = take(due_key, now_ms) end
end
write_back()
return cmsgpack.pack({'ok', now_ms, not is_all, handed})
