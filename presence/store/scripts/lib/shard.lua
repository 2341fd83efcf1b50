-- provides: EXACT absent_key answer_with control_prefix count decoded device_events events_key fenced_now generation
-- provides: is_count is_fenced is_number last_id left_key meta_key node node_key node_prefix now_ms offline_channel
-- provides: online_channel online_key opened_under peer_traces_key pending_logins_key pending_nodes_key refuse
-- provides: replication_id replication_info seen_key seen_retention_ms sessions_key stream_maxlen
-- Shared by all scripts of one shard. The first line of a script names the parts of this folder put before it.
--
-- KEYS (one hash slot: all carry the shard's tag)
--   1 events   stream: every transition, in order
--   2 online   hash: uid -> JSON record {id, since_ms, sessions: {device: {session, node, generation,
--              login_ms, arrived_ms, idle_timeout_ms}}}; login_ms and arrived_ms by this shard's clock. Optional:
--              a session has `away` (true), the texts of lib/event_texts.lua, and `late_ms`: by so much `login_ms` may
--              be too late, because the call came late; the record has `state`: {id, since_ms},
--              its latest "away", "update" or "device" entry and the start of the present status; and that of an invisible user has
--              `public` (a text, see lib/shown_state.lua), and that of one who hides something `privacy` (lib/profile.lua)
--   3 seen     sorted set: uid -> ms last seen, of users offline
--   4 node     hash of the calling node: gen, n, reply, trail, complete, fence, inbox, inbox_n. `trail`: the batch history,
--              counters of previous generations; `complete`: the generation in which all its live sessions have been registered;
--              `fence`: ms since when no writes of this id are accepted
--   5 traces   hash: ids of the nodes that have such a hash -> "<gen> <complete> <0 or 1: fenced> <replication id>"; a
--              summary of that hash, so that its peers can read all together. The replication id is that under which it
--              became complete, or "-"
--   6 holding  set: ids of the nodes with pending logins
--   7 meta     hash: version, that of the form of this shard's data; unfinished, see lib/effects.lua; floor, an entry id
--              above which the next one has to be, whatever entries there are; privacy, "1" once a user has hidden something;
--              rooms, "1" once a session has been in a room
--   8 absent   never exists. While a cluster moves a slot key by key, its servers refuse calls with a missing key, so no
--              script works on half of a shard: undeclared keys would fail it midway
--   9 left     hash: uid -> "<code> <entry id> <ms>" of the last offline event, of users in `seen`; `ms`: its time, from that
--              of the entry id on. After it, of a user who left invisible: a space, and `public` of the record, or "-";
--              and of one who hides something: a space, "+" and `privacy` of the record
-- ARGV
--   1 node id
--   2 generation
--   3 replication id under which the caller opened the generation; "" in an opening call only
--   4 prefix of the keys of nodes in this shard: <prefix><id> is the `node` hash of another node. Two more hashes of each
--     node are <prefix><id>:sessions, of the sessions that it owns: "<uid> <device>" -> "<generation> <session>"; and
--     <prefix><id>:pending, of its pending logins (see lib/changes.lua): uid -> JSON. These keys are computed: not
--     declared in KEYS, but in the same slot by the same tag
--   5 channel of online events   6 channel of offline events   7 prefix of control channels
--   8 approximate maximum of entries in the stream   9 retention of `seen` and `left`, ms
--   10... the script's own; of those that change sessions (apply, retire, sweep) the last is "devices" if the devices of a
--     user who stays online have entries, otherwise ""
--
-- The only clock is TIME of this server. A record that is not of the form above counts as absent, so that one damaged
-- value cannot stop a shard.

local events_key, online_key, seen_key, node_key, peer_traces_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pending_nodes_key, meta_key, absent_key, left_key = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local node, generation, opened_under, node_prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local online_channel, offline_channel, control_prefix = ARGV[5], ARGV[6], ARGV[7]
local stream_maxlen, seen_retention_ms = ARGV[8], ARGV[9]
local device_events = ARGV[#ARGV] == 'devices'

local function sessions_key(id)
  return node_prefix .. id .. ':sessions'
end

local function pending_logins_key(id)
  return node_prefix .. id .. ':pending'
end

local EXACT = 2 ^ 53  -- numbers below it are exact

-- Returns the number in a field; 0 if there is none, or none that a script wrote.
local function count(text)
  local number = text and tonumber(text)
  return number and number >= 0 and number < EXACT and number or 0
end

-- Whether a decoded value is a number that `count` could return; others cannot be compared with their digits.
local function is_count(value)
  return type(value) == 'number' and value >= 0 and value < EXACT and value % 1 == 0
end

local function is_number(value)
  return type(value) == 'number' and value - value == 0  -- not infinite
end

-- Whether a decoded table can be encoded again. JSON has no infinite numbers, but `1e999` is read as one.
local function is_finite(value)
  for _, each in next, value do
    local kind = type(each)
    if kind == 'number' and each - each ~= 0 or kind == 'table' and not is_finite(each) then return false end
  end
  return true
end

-- Returns a JSON array or object of Redis as a table, empty if it is damaged.
local function decoded(text)
  local ok, value = pcall(cjson.decode, text or '[]')
  return ok and type(value) == 'table' and is_finite(value) and value or {}
end

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- Only Redis 7 and Valkey return two sections together.
local replication_info = redis.acl_check_cmd and redis.call('INFO', 'replication', 'cluster')
  or redis.call('INFO', 'replication')
local replication_id = string.match(replication_info, 'master_replid:(%x+)',
  (string.find(replication_info, 'master_replid:', 1, true)))

-- Returns the answer of a script: values as MessagePack, and the replication id of now.
local function answer_with(values)
  return {cmsgpack.pack(values), replication_id}
end

-- Returns a refusal: a status, the present generation, and of a batch that is too heavy how many items are not.
local function refuse(status, present, fitting)
  return answer_with({status = status, generation = present, fitting = fitting})
end

local fenced_now = {}  -- ids that this call fences

local function is_fenced(id)
  return fenced_now[id] or redis.call('HEXISTS', node_prefix .. id, 'fence') == 1
end

local function last_id()
  if redis.call('EXISTS', events_key) == 0 then return '0-0' end
  local info = redis.call('XINFO', 'STREAM', events_key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

