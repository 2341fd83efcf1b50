-- provides: FIRST_OWN VALUES_A_CALL append_to begin_search commit digits go_offline go_online hand idle_ms now_digits
-- provides: now_ms parse_user read_users refusal_of refuse_slot refuse_slots remove_from_slots slot_prefix tick_ms
-- provides: users_key wheel_key whole_digits will_in_slices
-- Shared by all scripts of a presence wheel: the users online, by the ticks at which their idle time-outs end. One wheel
-- per shard; the Python half is presence/timers/redis_wheel.py.
--
-- KEYS (one hash slot: all carry the shard's tag)
--   1 users   hash: uid -> "<tick> <ms last seen> <entry id of the online event>"; only users online
--   2 wheel   hash: hand, the last tick whose users were all taken; walk, the cursor of the walk over `users` of expire.lua;
--             search: this walk is quick, because the hand was lost while there were users; unfinished, see
--             lib/effects.lua
--   3 events  stream: each user's online and offline events in turn, with the fields of a shard's events
--   4 absent  never exists. While a cluster moves a slot key by key, its servers refuse calls with a missing key, so no
--             script works on half of a wheel
-- ARGV
--   1 prefix of the keys of slots, followed by the number of a tick. They depend on the clock of Redis, which the caller
--     does not know: not declared in KEYS, but in the same slot by the same tag. Each is a set of uids
--   2 ms of a tick   3 idle time-out, ms   4 node of the events
--   5 approximate maximum of entries in the stream
--   6... the script's own
--
-- Tick k is the moment k * tick_ms: an absolute number, never a position in a ring. However late `expire` is called, a
-- present slot cannot be mistaken for an old one. A user is in one slot, that of the first tick at or after the deadline,
-- and the hash says which. So a move is O(1), and a slot is due at its moment, never before. Empty slots do not exist.
-- The clock is TIME with its fractions, because a deadline cut to whole ms would be early. If the clock is set back, users
-- are added behind the hand; that moves the hand back, so that they are taken.

local users_key, wheel_key, events_key = KEYS[1], KEYS[2], KEYS[3]
local slot_prefix, tick_ms, idle_ms, node, maxlen = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local FIRST_OWN = 6

-- A hand that is further behind counts as lost, as after a very long pause: searching the users is quicker than examining
-- that many slots, which takes seconds. So does one that is as far ahead of the clock, which no script wrote.
local MAX_SLOTS_AWAY = 5000000
local VALUES_A_CALL = 1000  -- even, and well within the stack limit of unpack

local function digits(number)
  return string.format('%.0f', number)
end

-- Returns a stored number, or the cursor of a walk, as it is; nil if it is absent or damaged.
local function whole_digits(text)
  local found = string.match(text or '', '^%d+$')
  return found and #found <= 15 and found or nil
end

local function whole(text)
  return tonumber(whole_digits(text) or nil)
end

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + clock[2] / 1000
local found = redis.call('HMGET', wheel_key, 'hand', 'unfinished')
if found[2] then
  raise(finish_former(wheel_key))
  found = redis.call('HMGET', wheel_key, 'hand')
end
local hand = whole(found[1])
if hand and math.abs(math.floor(now_ms / tick_ms) - hand) > MAX_SLOTS_AWAY then hand = nil end
local now_digits = digits(math.floor(now_ms))

-- Puts off a command on a key with any number of values.
local function will_in_slices(command, key, values)
  for first = 1, #values, VALUES_A_CALL do
    will(command, key, unpack(values, first, math.min(first + VALUES_A_CALL - 1, #values)))
  end
end

-- Reads the values of several users.
local function read_users(uids)
  local found = {}
  for first = 1, #uids, VALUES_A_CALL do
    local last = math.min(first + VALUES_A_CALL - 1, #uids)
    for i, value in ipairs(redis.call('HMGET', users_key, unpack(uids, first, last))) do
      found[first + i - 1] = value
    end
  end
  return found
end

-- Returns tick, ms last seen and online entry of a user's value, as texts; nil if it is absent or damaged.
local function parse_user(value)
  if value then return string.match(value, '^(%d+) (%d+) (%d+%-%d+)$') end
end

-- Returns the id of the next entry, as Redis would give it: so it is known before anything is written.
local top_ms, top_n
local function take_id()
  if not top_ms then
    local info = redis.call('EXISTS', events_key) == 1 and redis.call('XINFO', 'STREAM', events_key) or {}
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then top_ms, top_n = string.match(info[i + 1], '^(%d+)-(%d+)$') end
    end
    top_ms, top_n = tonumber(top_ms or 0), tonumber(top_n or 0)
  end
  local clock_ms = math.floor(now_ms)
  if top_ms < clock_ms then top_ms, top_n = clock_ms, 0 else top_n = top_n + 1 end
  return digits(top_ms) .. '-' .. digits(top_n)
end

local function add_entry(...)
  local id = take_id()
  will('XADD', events_key, 'MAXLEN', '~', maxlen, id, 'v', '1', ...)
  return id
end

local function go_online(uid)
  return add_entry('type', 'online', 'uid', uid, 'code', '1', 'reason', 'login', 'node', node, 'session', '', 'device', '',
    'since_ms', now_digits, 'last_seen_ms', now_digits, 'at_ms', now_digits)
end

local function go_offline(uid, code, reason, last_seen_ms, since_id)
  add_entry('type', 'offline', 'uid', uid, 'code', code, 'reason', reason, 'node', node, 'session', '', 'device', '',
    'since_ms', string.match(since_id, '^%d+'), 'last_seen_ms', last_seen_ms, 'at_ms', now_digits, 'since_id', since_id)
end

-- Returns the refusal that an answer about a slot is.
local function refusal_of(key, answer)
  if not string.find(answer.err, 'WRONGTYPE', 1, true) then return redis.error_reply(answer.err) end
  return redis.error_reply('WRONGTYPE value of another program: redis-cli DEL ' .. key)
end

-- Returns a refusal if a slot has a value of another type, otherwise nil; for use before an event is written.
local function refuse_slot(tick)
  local key = slot_prefix .. tick
  local answer = redis.pcall('SRANDMEMBER', key)
  if type(answer) == 'table' and answer.err then return refusal_of(key, answer) end
end

-- Returns the first refusal of some slots; `by_tick`: tick -> uids.
local function refuse_slots(by_tick)
  for tick in pairs(by_tick) do
    local refusal = refuse_slot(tick)
    if refusal then return refusal end
  end
end

-- Sets the hand to the last tick. If there are users, it was lost, and some may be in slots behind it: returns whether the
-- search for these begins.
local function begin_search()
  hand = math.floor(now_ms / tick_ms)
  will('HSET', wheel_key, 'hand', digits(hand))
  if redis.call('HLEN', users_key) == 0 then return false end
  will('HSET', wheel_key, 'walk', '0', 'search', '1')
  return true
end

-- Removes users from their slots; `by_tick`: tick -> uids.
local function remove_from_slots(by_tick)
  for tick, uids in pairs(by_tick) do will_in_slices('SREM', slot_prefix .. tick, uids) end
end

-- Appends a value to the list of a name.
local function append_to(lists, name, value)
  local list = lists[name]
  if list then
    list[#list + 1] = value
  else
    lists[name] = {value}
  end
end

-- Ends a call: carries out what it has computed.
local function commit()
  carry_out_all(wheel_key)
end
