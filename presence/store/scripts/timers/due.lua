-- Hands out due events, earliest first: by their due time, or by the end of their lease or pause. So events that fail
-- again and again do not delay new ones.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 limit: maximum number of events   3 lease, ms   4 attempts after which an event is a dead letter
--   5 claim_key   6 number of the call, see prelude.lua: a repeated call hands out the same events, as the same attempts
-- Returns ["ok", now_ms, is_more, [id, due_ms, attempt, payload, of the next...]]. `is_more`: others may be due already.
-- If a queue has more events than its sorted sets, the index was lost in part: each call puts some back into it. In a ring
-- some events are looked at in each second.
-- O(log n + k) for k events; in a ring also the slots that have passed, at most SLOTS_A_CALL and at most one lap.

begin()
local limit, lease_ms, attempts_max = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local claim_key, number = ARGV[5], tonumber(ARGV[6])

allow_without_memory()
if hand_out_again(claim_key, number, lease_ms) then
  commit()
  return cmsgpack.pack({'ok', now_ms, true, handed_out})
end

-- Makes events that are in no sorted set wait again, some at a time: one step of a walk over all events.
local function restore_index()
  local scan = redis.call('HSCAN', work_key, cursor_of(redis.call('HGET', counts_key, 'walk')), 'COUNT', READ_AHEAD)
  will('HSET', counts_key, 'walk', scan[1])
  for i = 1, #scan[2], 2 do
    local id, entry = scan[2][i], unpack_entry(scan[2][i + 1])
    local is_indexed = (entry or not ring) and read_index('ZSCORE', index_of(entry and entry[1] or 0), id)
      or redis.call('ZSCORE', leased_key, id) or redis.call('ZSCORE', dead_key, id)
    if not is_indexed then
      if entry then add_to_index(id, entry[1]) else delete_entry(id) end
    end
  end
end

-- Whether events of a queue are in no sorted set. Without its index it must not pass for an empty one.
local function lacks_index()
  local indexed = 0
  for _, key in ipairs({due_key, leased_key, dead_key}) do indexed = indexed + redis.call('ZCARD', key) end
  return redis.call('HLEN', work_key) > indexed
end

local was_incomplete = not ring and lacks_index()
if was_incomplete then restore_index() end

local function due_members(key)
  return redis.call('ZRANGEBYSCORE', key, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, limit)
end

local expired = due_members(leased_key)  -- events whose lease or pause is over; flat: id, score
local next_expired = 1

-- Hands out events whose lease or pause was over at `until_ms`; returns false if others may be left.
local function hand_out_expired(until_ms)
  local ids = {}
  while expired[next_expired] and tonumber(expired[next_expired + 1]) <= until_ms and examined + #ids < limit do
    ids[#ids + 1] = expired[next_expired]
    next_expired = next_expired + 2
  end
  return hand_out(leased_key, ids, lease_ms, attempts_max) and examined < limit
end

-- Hands out the events of a slot up to a lap; returns false if others may be left.
local function hand_out_slot(key, lap)
  local room = limit - examined
  local ids = read_index('ZRANGEBYSCORE', key, '-inf', lap, 'LIMIT', 0, room)
  return hand_out(key, ids, lease_ms, attempts_max) and #ids < room
end

-- Moves the hand of a ring towards now, slot by slot; returns false if events may be left. After a lap or more without a
-- call it examines each slot once, for the present lap and all before.
local function hand_out_ring()
  local last = math.floor(now_ms / ring.tick_ms)
  ring.hand = math.max(ring.hand, last - ring.slots)
  for _ = 1, SLOTS_A_CALL do
    if ring.hand >= last then return hand_out_expired(now_ms) end
    local tick = ring.hand + 1
    if not hand_out_expired(tick * ring.tick_ms) then return false end
    if not hand_out_slot(ring.prefix .. tick % ring.slots, math.floor(tick / ring.slots)) then return false end
    ring.hand = tick
  end
  return ring.hand >= last and hand_out_expired(now_ms)
end

-- Hands out the events of a queue, merged with the expired ones; returns false if others may be left.
local function hand_out_queue()
  local waiting = due_members(due_key)
  local ids, sources, i = {}, {}, 1
  while #ids < limit and (expired[next_expired] or waiting[i]) do
    local n = #ids + 1
    if not waiting[i] or (expired[next_expired] and tonumber(expired[next_expired + 1]) <= tonumber(waiting[i + 1])) then
      ids[n], sources[n] = expired[next_expired], leased_key
      next_expired = next_expired + 2
    else
      ids[n], sources[n] = waiting[i], due_key
      i = i + 2
    end
  end
  return hand_out(sources, ids, lease_ms, attempts_max) and #ids < limit
end

-- The events of a ring are in too many slots to be counted, so the walk goes on all the time: a step in each second.
local function is_next_second(former_hand)
  return math.floor(ring.hand * ring.tick_ms / 1000) > math.floor(former_hand * ring.tick_ms / 1000)
end

local is_all
if ring then
  local former_hand = ring.hand
  is_all = hand_out_ring()
  if is_next_second(former_hand) then restore_index() end
else
  is_all = hand_out_queue()
end
note_claim(claim_key, number, lease_ms)
commit()
return cmsgpack.pack({'ok', now_ms, not is_all or was_incomplete or false, handed_out})
