-- What the scripts of a presence wheel share: who is online, by the ticks at which each will have been silent for too
-- long. One wheel a shard; the Python half is presence/timers/redis_wheel.py.
--
-- KEYS (one hash slot: all carry the shard's tag)
--   1 users   hash: uid -> "<tick> <ms last seen> <entry id of his online event>"; only users online
--   2 wheel   hash: hand, the last tick of which every user was taken
--   3 events  stream: each user's online and offline by turns; its fields are those of the scripts of a shard
--   4 absent  never exists. While a cluster moves a slot key by key, its servers refuse a call of which a key is not
--             there, so that no script works on half of a wheel
-- ARGV
--   1 what the keys of slots begin with; a tick's number follows. They depend on the clock of Redis, which the caller
--     does not know, so they are not declared; by the tag they are in the same hash slot. Each is a set of uids
--   2 ms of a tick   3 ms of silence after which a user is offline   4 node of the events
--   5 entries that the stream is capped to, roughly
--   6... the script's own
--
-- Theory. Tick k is the moment k * tick_ms, an absolute number, never a place in a ring: however late `expire` comes, a
-- slot of today cannot be taken for one of yesterday. A user is in one slot, that of the first tick at or after his
-- deadline, and the hash says which: so a move is O(1), and a slot is due when its moment has come, never before. Slots
-- that are empty do not exist. The clock is TIME with its fractions (a deadline cut to whole ms would be early). A clock
-- that is set back puts users behind the hand: who is put there moves it back, so that no one waits for it in vain.

local users_key, wheel_key, events_key = KEYS[1], KEYS[2], KEYS[3]
local slot_prefix, tick_ms, idle_ms, node, maxlen = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local FIRST_OWN = 6

local VALUES_A_CALL = 1000  -- even, and well within what unpack can put on the stack

local function digits(number)
  return string.format('%.0f', number)
end

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + clock[2] / 1000
local hand = tonumber(redis.call('HGET', wheel_key, 'hand') or nil)
local now_digits = digits(math.floor(now_ms))

-- Calls a command on a key with any number of values.
local function call_with(command, key, values)
  for first = 1, #values, VALUES_A_CALL do
    redis.call(command, key, unpack(values, first, math.min(first + VALUES_A_CALL - 1, #values)))
  end
end

-- Returns what the hash says of several users.
local function read(uids)
  local found = {}
  for first = 1, #uids, VALUES_A_CALL do
    local last = math.min(first + VALUES_A_CALL - 1, #uids)
    for i, value in ipairs(redis.call('HMGET', users_key, unpack(uids, first, last))) do
      found[first + i - 1] = value
    end
  end
  return found
end

-- Returns tick, ms last seen and online entry of a value, as text; nil of a damaged one, which counts as absent.
local function parse(value)
  if value then return string.match(value, '^(%d+) (%d+) (%d+%-%d+)$') end
end

local function go_online(uid)
  return redis.call('XADD', events_key, 'MAXLEN', '~', maxlen, '*', 'v', '1', 'type', 'online', 'uid', uid,
    'code', '1', 'reason', 'login', 'node', node, 'session', '', 'device', '', 'since_ms', now_digits,
    'last_seen_ms', now_digits, 'at_ms', now_digits)
end

local function go_offline(uid, code, reason, last_seen_ms, since_id)
  redis.call('XADD', events_key, 'MAXLEN', '~', maxlen, '*', 'v', '1', 'type', 'offline', 'uid', uid, 'code', code,
    'reason', reason, 'node', node, 'session', '', 'device', '', 'since_ms', string.match(since_id, '^%d+'),
    'last_seen_ms', last_seen_ms, 'at_ms', now_digits, 'since_id', since_id)
end

-- The refusal of a user who may not call all of this; nil: it may. A call that Redis stops half-way would tell its events
-- again with each retry. (Before Redis 7 nobody can know beforehand.)
local function refuse_unpermitted()
  for _, command in ipairs(redis.acl_check_cmd and {
    {'XADD', events_key}, {'SADD', slot_prefix}, {'SREM', slot_prefix}, {'SPOP', slot_prefix}, {'HSET', users_key},
    {'HDEL', users_key}, {'HLEN', users_key}, {'HSET', wheel_key},
  } or {}) do
    if not redis.acl_check_cmd(unpack(command)) then
      return redis.error_reply('NOPERM this user may not call ' .. table.concat(command, ' '))
    end
  end
end

-- Takes users out of their slots; `leaving`: tick -> uids.
local function leave(leaving)
  for tick, uids in pairs(leaving) do call_with('SREM', slot_prefix .. tick, uids) end
end

local function add_to(lists, name, value)
  local list = lists[name]
  if list then
    list[#list + 1] = value
  else
    lists[name] = {value}
  end
end
