-- Hands out events whose time has come, earliest first: by the time for which they wait, or at which their lease or
-- pause was over. So what fails again and again keeps nothing new out.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 how many at most   3 lease, ms   4 attempts, after which an event is a dead letter
-- Returns ["ok", now_ms, is_more, [id, due_ms, attempt, payload, of the next...]]. `is_more`: others may be due already.
-- O(log n + k) for k events; of a ring also the slots that have passed, SLOTS_A_CALL and a lap at most.

local limit, lease_ms, attempts_max = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

need_no_memory()

local function up_to_now(key)
  return redis.call('ZRANGEBYSCORE', key, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, limit)
end

local again = up_to_now(leased_key)  -- flat: id, score
local next_again = 1

-- Takes those of `leased` whose lease or pause was over by then; false: others may be left.
local function take_again(until_ms)
  local ids = {}
  while again[next_again] and tonumber(again[next_again + 1]) <= until_ms and looked_at + #ids < limit do
    ids[#ids + 1] = again[next_again]
    next_again = next_again + 2
  end
  return hand_out(leased_key, ids, lease_ms, attempts_max) and looked_at < limit
end

-- Takes those of a slot up to a lap; false: others may be left.
local function take_slot(key, lap)
  local room = limit - looked_at
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', lap, 'LIMIT', 0, room)
  return hand_out(key, ids, lease_ms, attempts_max) and #ids < room
end

-- Moves the hand on to now, slot by slot; false: others may be left. Who comes after a lap or more looks at each slot
-- once, for the lap of now and all before.
local function walk()
  local last = math.floor(now_ms / ring.tick_ms)
  ring.hand = math.max(ring.hand, last - ring.slots)
  for _ = 1, SLOTS_A_CALL do
    if ring.hand >= last then return take_again(now_ms) end
    local tick = ring.hand + 1
    if not take_again(tick * ring.tick_ms) then return false end
    if not take_slot(ring.prefix .. tick % ring.slots, math.floor(tick / ring.slots)) then return false end
    ring.hand = tick
  end
  return ring.hand >= last and take_again(now_ms)
end

-- Takes those of a queue.
local function merge()
  local waiting = up_to_now(due_key)
  local ids, sources, i = {}, {}, 1
  while #ids < limit and (again[next_again] or waiting[i]) do
    local n = #ids + 1
    if not waiting[i] or (again[next_again] and tonumber(again[next_again + 1]) <= tonumber(waiting[i + 1])) then
      ids[n], sources[n] = again[next_again], leased_key
      next_again = next_again + 2
    else
      ids[n], sources[n] = waiting[i], due_key
      i = i + 2
    end
  end
  return hand_out(sources, ids, lease_ms, attempts_max) and #ids < limit
end

local is_all
if ring then is_all = walk() else is_all = merge() end
write_back()
return cmsgpack.pack({'ok', now_ms, not is_all, handed})
