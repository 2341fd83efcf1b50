-- What apply, retire and probe share; the store puts this text before each of them.
--
-- KEYS (one hash slot: all carry the shard's tag)
--   1 events   stream: every transition, in order
--   2 online   hash: uid -> JSON record {id, since_ms, sessions: {device: {session, node, generation,
--              login_ms, arrived_ms, idle_timeout_ms}}}; login_ms and arrived_ms by this shard's clock
--   3 seen     sorted set: uid -> ms last seen, of users offline
--   4 node     hash of the calling node: gen, n, reply, fence, inbox, inbox_n, and what it owns:
--              "<uid> <device>" -> "<generation> <session>"
--   5 members  set: ids of the nodes that have such a hash
-- ARGV
--   1 node id
--   2 generation
--   3 replication id under which the caller opened the generation; "" in an opening call only
--   4 what the keys of node hashes begin with in this shard. The hash of another node (who owned a displaced
--     session) is computed from it: not declared in KEYS, but in the same slot by the same tag
--   5 channel of online events   6 channel of offline events   7 what control channels begin with
--   8 entries that the stream is capped to, roughly   9 retention of `seen`, ms
--   10... the script's own
--
-- The clock is TIME of this server and no other. A record that is not of the form above counts as absent, so
-- that one damaged value cannot stop a shard.

local events_key, online_key, seen_key, node_key, members_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local node, generation = ARGV[1], tonumber(ARGV[2])
local node_prefix = ARGV[4]

local CODE_RETURNED, CODE_NODE_DOWN = 2, 402

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
local highest_id = ''  -- of the entries written by this call

local function refuse(status, present)
  return {cmsgpack.pack({status = status, generation = present or 0}), history}
end

local function is_fenced(id)
  return redis.call('HEXISTS', node_prefix .. id, 'fence') == 1
end

-- The other nodes that may still be at work here.
local function others()
  local found = {}
  for _, id in ipairs(redis.call('SMEMBERS', members_key)) do
    if id ~= node and not is_fenced(id) then found[#found + 1] = id end
  end
  return found
end

local function last_id()
  if redis.call('EXISTS', events_key) == 0 then return '0-0' end
  local info = redis.call('XINFO', 'STREAM', events_key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

local function is_session(value)
  return type(value) == 'table' and type(value.session) == 'string' and type(value.node) == 'string'
    and type(value.login_ms) == 'number' and type(value.arrived_ms) == 'number'
end

local function read_record(uid)
  local text = redis.call('HGET', online_key, uid)
  if not text then return nil end
  local ok, record = pcall(cjson.decode, text)
  if not ok or type(record) ~= 'table' or type(record.id) ~= 'string' or type(record.since_ms) ~= 'number'
      or type(record.sessions) ~= 'table' or not next(record.sessions) then
    return nil
  end
  for _, session in pairs(record.sessions) do
    if not is_session(session) then return nil end
  end
  return record
end

local function write_record(uid, record)
  redis.call('HSET', online_key, uid, cjson.encode(record))
end

-- Writes and publishes one transition; returns its entry id. `e`: type, uid, code, reason, session, device,
-- since_ms, last_seen_ms, at_ms, and since_id of an offline event.
local function emit(e)
  e.v, e.node = 1, node
  local fields = {'v', 1, 'type', e.type, 'uid', e.uid, 'code', e.code, 'reason', e.reason, 'node', node,
    'session', e.session, 'device', e.device, 'since_ms', e.since_ms, 'last_seen_ms', e.last_seen_ms,
    'at_ms', e.at_ms}
  if e.since_id then
    fields[#fields + 1], fields[#fields + 2] = 'since_id', e.since_id
  end
  local id = redis.call('XADD', events_key, 'MAXLEN', '~', ARGV[8], '*', unpack(fields))
  highest_id, e.id = id, id
  redis.call('PUBLISH', e.type == 'online' and ARGV[5] or ARGV[6], cjson.encode(e))
  return id
end

local function go_online(uid, device, session, code, reason, at_ms)
  redis.call('ZREM', seen_key, uid)
  local id = emit({type = 'online', uid = uid, code = code, reason = reason, session = session,
    device = device, since_ms = at_ms, last_seen_ms = at_ms, at_ms = at_ms})
  return {id = id, since_ms = at_ms, sessions = {}}
end

local function go_offline(record, uid, device, session, code, reason, at_ms, last_seen_ms)
  redis.call('HDEL', online_key, uid)
  redis.call('ZADD', seen_key, last_seen_ms, uid)
  emit({type = 'offline', uid = uid, code = code, reason = reason, session = session, device = device,
    since_ms = record.since_ms, since_id = record.id, last_seen_ms = last_seen_ms, at_ms = at_ms})
end

-- Takes a session that `record` names out of it: an offline event if it was the user's last.
local function depart(record, uid, device, code, reason, at_ms, last_seen_ms)
  local present = record.sessions[device]
  record.sessions[device] = nil
  redis.call('HDEL', node_prefix .. present.node, uid .. ' ' .. device)
  if next(record.sessions) then
    write_record(uid, record)
  else
    go_offline(record, uid, device, present.session, code, reason, at_ms, last_seen_ms)
  end
end

-- Forgets a few users whose `seen` is older than the retention; more than one batch can add.
local function trim_seen(limit)
  local old = redis.call('ZRANGEBYSCORE', seen_key, '-inf', now_ms - ARGV[9], 'LIMIT', 0, limit)
  if #old > 0 then redis.call('ZREM', seen_key, unpack(old)) end
end
