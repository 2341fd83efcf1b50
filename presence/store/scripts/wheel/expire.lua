-- Moves the hand: users whose tick has come leave the wheel, each with an offline event, in one step. A caller may die at
-- any time: a user who was taken is in the stream, any other still in a slot.
--
-- KEYS and ARGV 1-5: see prelude.lua. ARGV
--   6 code and 7 reason of the offline events
--   8 maximum number of users to take
--   9 maximum number of slots to examine; after a long time without a call most may be empty
-- Each call also looks at some users on the wheel: one whose slot has passed is there because the slot, or the hand, was
-- lost, and is put into the next slot. After the loss of the hand that walk is quick.
-- Returns [1 if more may be due, else 0, uid, ms last seen, ms of the tick, ms of now, uid ...], earliest ticks first.

local code, reason = ARGV[FIRST_OWN], ARGV[FIRST_OWN + 1]
local limit, slots_left = tonumber(ARGV[FIRST_OWN + 2]), tonumber(ARGV[FIRST_OWN + 3])
local reply, expired = {0}, {}
if not hand and redis.call('HLEN', users_key) == 0 then return reply end

local function expire_user(uid, value, tick)
  local stored_tick, last_seen_ms, since_id = parse_user(value)
  if stored_tick ~= digits(tick) then return end  -- damaged: the user's slot, if any, is the one in the hash
  go_offline(uid, code, reason, last_seen_ms, since_id)
  expired[#expired + 1] = uid
  for _, each in ipairs({uid, last_seen_ms, digits(tick * tick_ms), now_digits}) do reply[#reply + 1] = each end
end

local USERS_WALKED, USERS_SEARCHED = 100, VALUES_A_CALL  -- some 50 us, and 1 ms

local walk = redis.call('HMGET', wheel_key, 'walk', 'search')
if not hand and begin_search() then walk = {'0', '1'} end
local is_search = walk[2] and true or false
local scan = redis.call('HSCAN', users_key, whole_digits(walk[1]) or '0', 'COUNT', is_search and USERS_SEARCHED or USERS_WALKED)
local values, overdue, former = {}, {}, {}
for i = 1, #scan[2], 2 do
  local stored_tick, last_seen_ms, since_id = parse_user(scan[2][i + 1])
  if not stored_tick or tonumber(stored_tick) <= hand then
    local n = #values
    if stored_tick then append_to(former, stored_tick, scan[2][i]) end
    values[n + 1], overdue[#overdue + 1] = scan[2][i], scan[2][i]
    values[n + 2] = digits(hand + 1) .. ' ' .. (last_seen_ms or now_digits) .. ' ' .. (since_id or '0-0')
  end
end
local refusal = refuse_slot(digits(hand + 1)) or refuse_slots(former)
if refusal then return refusal end
remove_from_slots(former)
will_in_slices('SADD', slot_prefix .. digits(hand + 1), overdue)
will_in_slices('HSET', users_key, values)
if scan[1] ~= (walk[1] or '0') then will('HSET', wheel_key, 'walk', scan[1]) end
if is_search and scan[1] == '0' then
  will('HDEL', wheel_key, 'search')
  is_search = false
end

local first, present = hand, math.floor(now_ms / tick_ms)
if redis.call('HLEN', users_key) == 0 then hand = math.max(hand, present) end
-- Users who were just put into the next slot are taken by the next call, so the hand does not pass them.
while #overdue == 0 and hand < present and slots_left > 0 do
  local slot, wanted = slot_prefix .. digits(hand + 1), math.min(limit, VALUES_A_CALL)
  local uids = wanted > 0 and redis.pcall('SRANDMEMBER', slot, wanted) or {}
  if uids.err then
    if hand == first and #expired == 0 then return refusal_of(slot, uids) end
    break  -- what is done is written, and the next call is refused
  end
  for i, value in ipairs(read_users(uids)) do expire_user(uids[i], value, hand + 1) end
  will_in_slices('SREM', slot, uids)
  limit = limit - #uids
  if #uids == wanted then break end  -- others may be left
  hand = hand + 1
  slots_left = slots_left - 1
end
will_in_slices('HDEL', users_key, expired)
if hand ~= first then will('HSET', wheel_key, 'hand', digits(hand)) end
if hand < present or is_search or #overdue > 0 then reply[1] = 1 end
commit()
return reply
