-- What the scripts of one shard share; the store puts this text before each of them.
--
-- KEYS (one hash slot: all carry the shard's tag)
--   1 events   stream: every transition, in order
--   2 online   hash: uid -> JSON record {id, since_ms, sessions: {device: {session, node, generation,
--              login_ms, arrived_ms, idle_timeout_ms}}}; login_ms and arrived_ms by this shard's clock. Where it is
--              so, a session has `away` (true) and `meta` (a text, opaque here), and the record has `state`: {id,
--              since_ms}, its latest "away" or "update" entry and since when the present status stands
--   3 seen     sorted set: uid -> ms last seen, of users offline
--   4 node     hash of the calling node: gen, n, reply, trail, complete, fence, inbox, inbox_n, and what it owns:
--              "<uid> <device>" -> "<generation> <session>". `trail`: the counters before this generation;
--              `complete`: the generation under which all its live sessions have been registered; `fence`: ms
--              since when nothing is taken from this id any more. "<uid>  held" (two spaces) -> JSON of `marks`
--   5 traces   hash: ids of the nodes that have such a hash -> "<gen> <complete> <0 or 1: fenced> <history>"; what the
--              node's own hash says, where all can be read at once. `history`: the replication id under which it
--              became complete, or "-"
--   6 holding  set: ids of the nodes that have marks
--   7 absent   never exists. While a cluster moves a slot key by key, its servers refuse a call of which a key is
--              not there, so that no script works on half of a shard: undeclared keys would fail it midway
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

local events_key, online_key, seen_key, node_key, traces_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holding_key, absent_key = KEYS[6], KEYS[7]
local node, generation = ARGV[1], tonumber(ARGV[2])
local node_prefix = ARGV[4]
-- Of the channels of its users: of the same database as the channel of online events, with the shard's tag.
local user_prefix = string.sub(ARGV[5], 1, -string.len('online') - 1) .. string.match(events_key, '{%d+}') .. ':user:'

local CODE_RETURNED, CODE_NODE_DOWN = '2', '402'
local CODE_AWAY, CODE_BACK, CODE_UPDATED = '3', '4', '5'

-- The number that a field holds; 0 if none.
local function count(text)
  return text and tonumber(text) or 0
end

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local replication = redis.call('INFO', 'replication')
local history = string.match(replication, 'master_replid:(%x+)')
local highest_id = ''  -- of the entries written by this call

-- How many entries of each kind this call has written, flat: type, code ("0": a gap), number... It travels with the
-- reply, and what is stored of it, so that the caller's node counts each entry once.
local told, told_at = {}, {}
local function note_told(type, code)
  local kind = type .. code
  local at = told_at[kind]
  if not at then
    at = #told + 3
    told[at - 2], told[at - 1], told[at] = type, code, 0
    told_at[kind] = at
  end
  told[at] = told[at] + 1
end

local function refuse(status, present)
  return {cmsgpack.pack({status = status, generation = present or 0}), history}
end

local function is_fenced(id)
  return redis.call('HEXISTS', node_prefix .. id, 'fence') == 1
end

-- Notes what the hash of a node says; `completed_under`: the replication id, if it has just become complete.
local function trace(id, completed_under)
  local counter = redis.call('HMGET', node_prefix .. id, 'gen', 'complete', 'fence')
  redis.call('HSET', traces_key, id, string.format('%.0f %.0f %d %s', count(counter[1]), count(counter[2]),
    counter[3] and 1 or 0, completed_under or '-'))
end

-- Takes nothing from a node id any more. One that was fenced before may have been swept since: no new trace of it.
local function fence(id)
  if redis.call('HSETNX', node_prefix .. id, 'fence', string.format('%.0f', now_ms)) == 1 then trace(id) end
end

-- The refusal of a caller that is not the node of that generation any more; nil: it is. Order as in apply.
local function refuse_outdated()
  local counter = redis.call('HMGET', node_key, 'gen', 'fence')
  local present = count(counter[1])
  if ARGV[3] ~= history then return refuse('history', present) end
  if counter[2] then return refuse('fenced', present) end
  if present ~= generation then return refuse('unknown', present) end
end

-- What follows the first event that a call writes.
local function needed()
  return {
    {'XADD', events_key}, {'XTRIM', events_key}, {'HGET', online_key}, {'HSET', online_key}, {'HDEL', online_key},
    {'HEXISTS', node_key}, {'HMGET', node_key}, {'ZADD', seen_key}, {'ZREM', seen_key}, {'ZRANGEBYSCORE', seen_key},
    {'SADD', holding_key}, {'SREM', holding_key}, {'HGETALL', traces_key}, {'PUBSUB', 'NUMSUB'}, {'PUBSUB', 'NUMPAT'},
    {'PUBLISH', ARGV[5]}, {'PUBLISH', ARGV[6]}, {'PUBLISH', ARGV[7] .. node}, {'PUBLISH', user_prefix},
  }
end

-- The refusal of a user who may not call all of that; nil: it may. A call that Redis stops half-way leaves what it has
-- written, and would tell its events again with each retry. (Before Redis 7 nobody can know beforehand.)
local function refuse_unpermitted()
  for _, command in ipairs(redis.acl_check_cmd and needed() or {}) do
    if not redis.acl_check_cmd(unpack(command)) then
      return redis.error_reply('NOPERM this user may not call ' .. table.concat(command, ' '))
    end
  end
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

-- What this call has read, and what it will have written when it ends (`write_back`): one call of Redis takes a few
-- hundred fields at the price of a handful. Until then reads go by these tables, never by Redis.
local read = {}     -- uid -> JSON of its record as Redis has it; false: none
local written = {}  -- uid -> the same as it is to be; false: the user goes offline
local seen = {}     -- uid -> digits of the ms last seen; false: to be removed
local owned = {}    -- key of a node's hash -> {field -> value; false: to be removed}

local VALUES_A_CALL = 1000  -- even, and well within what unpack can put on the stack

-- Reads the records of several users at once.
local function read_ahead(uids)
  for first = 1, #uids, VALUES_A_CALL do
    local last = math.min(first + VALUES_A_CALL - 1, #uids)
    local found = redis.call('HMGET', online_key, unpack(uids, first, last))
    for i = first, last do read[uids[i]] = found[i - first + 1] end
  end
end

-- Returns the JSON of a user's record as it is now; nil or false: none.
local function record_text(uid)
  local text = written[uid]
  if text == nil then text = read[uid] end
  if text == nil then
    text = redis.call('HGET', online_key, uid)
    read[uid] = text
  end
  return text
end

local function read_record(uid)
  local text = record_text(uid)
  if not text then return nil end
  local ok, record = pcall(cjson.decode, text)
  if not ok or type(record) ~= 'table' or type(record.id) ~= 'string' or type(record.since_ms) ~= 'number'
      or type(record.sessions) ~= 'table' or not next(record.sessions) then
    return nil
  end
  for _, session in pairs(record.sessions) do
    if not is_session(session) then return nil end
  end
  local state = record.state
  if state ~= nil and not (type(state) == 'table' and type(state.id) == 'string'
      and type(state.since_ms) == 'number') then
    record.state = nil
  end
  return record
end

-- The record of one plain session, with captures: id, since_ms, device, session, node. Nearly all users have one, and a
-- pattern takes a third of the time of a JSON parser. A record that does not match is left to the parser.
local LONE = '^{"id":"([%d%-]+)","since_ms":(%d+),"sessions":{"([^"\\]*)":{"session":"([^"\\]+)","node":"([^"\\]+)",'
  .. '"generation":%d+,"login_ms":%d+,"arrived_ms":%d+,"idle_timeout_ms":%d+}}}$'

-- Whether a text can stand in JSON as it is.
local function is_plain(text)
  return not string.find(text, '[%c"\\]')
end

local known_digits = {}  -- many items of a batch have the same times
local function digits(number)
  local text = known_digits[number]
  if not text then
    text = string.format('%.0f', number)
    known_digits[number] = text
  end
  return text
end

-- Returns the JSON of a record; of one plain session in the form of LONE where that can be.
local function encode_record(record)
  local device, session = next(record.sessions)
  if next(record.sessions, device) ~= nil or record.state ~= nil or session.away ~= nil or session.meta ~= nil
      or type(session.generation) ~= 'number' or type(session.idle_timeout_ms) ~= 'number'
      or not (is_plain(device) and is_plain(session.session) and is_plain(session.node) and is_plain(record.id)) then
    return cjson.encode(record)
  end
  return '{"id":"' .. record.id .. '","since_ms":' .. digits(record.since_ms) .. ',"sessions":{"' .. device
    .. '":{"session":"' .. session.session .. '","node":"' .. session.node .. '","generation":'
    .. digits(session.generation) .. ',"login_ms":' .. digits(session.login_ms) .. ',"arrived_ms":'
    .. digits(session.arrived_ms) .. ',"idle_timeout_ms":' .. digits(session.idle_timeout_ms) .. '}}}'
end

local function write_record(uid, record)
  written[uid] = encode_record(record)
end

local function own(key, field, value)
  local fields = owned[key]
  if not fields then
    fields = {}
    owned[key] = fields
  end
  fields[field] = value
end

-- Whether somebody may hear what is published on a channel. Of subscribers at replicas and at other nodes of a
-- cluster this server knows nothing.
local heard = {}
local function is_heard(channel)
  local answer = heard[channel]
  if answer == nil then
    answer = string.match(replication, 'connected_slaves:(%d+)') ~= '0'
      or string.match(redis.call('INFO', 'cluster'), 'cluster_enabled:(%d)') ~= '0'
      or redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 or redis.call('PUBSUB', 'NUMPAT') > 0
    heard[channel] = answer
  end
  return answer
end

-- The same of the channels of users. Only nodes whose clients watch a user listen there, each at the server that has the
-- shard, and so this server knows. A node that listens to any of them listens to the channel of nobody, too: where
-- nobody watches, which is what most calls find, one look tells it.
local watched = {}  -- uid -> whether somebody listens
local has_watchers

-- Asks for several users at once.
local function ask_watched(uids)
  if has_watchers == nil then has_watchers = redis.call('PUBSUB', 'NUMSUB', user_prefix)[2] > 0 end
  if not has_watchers then return end
  for first = 1, #uids, VALUES_A_CALL do
    local last, channels = math.min(first + VALUES_A_CALL - 1, #uids), {}
    for i = first, last do channels[i - first + 1] = user_prefix .. uids[i] end
    local listeners = redis.call('PUBSUB', 'NUMSUB', unpack(channels))
    for i = first, last do watched[uids[i]] = listeners[2 * (i - first + 1)] > 0 end
  end
end

local function is_watched(uid)
  if watched[uid] == nil and has_watchers ~= false then ask_watched({uid}) end
  return watched[uid]
end

-- A name and a value for the end of an argument list; nothing where there is no value.
local function optional(name, value)
  if value then return name, value end
end

-- The fields of an online event that only who is not plain has.
local function show_fields(is_away, meta)
  if is_away then return 'status', 'away', optional('meta', meta) end
  return optional('meta', meta)
end

-- Writes an entry about a user; returns its id. The code and the times are digits: Redis is slow at turning Lua's
-- numbers into text. Hints of it, as JSON, cost as much as the entry, so they are published only where somebody listens.
-- `channel`: of all events of the type, or nil; that of the user is told what he shows, too: `status`, since
-- `status_ms`. What follows are names and values that not every entry has.
local function emit(channel, type, code, reason, uid, device, session, since_ms, last_seen_ms, at_ms, status, status_ms,
    ...)
  local id = redis.call('XADD', events_key, '*', 'v', '1', 'type', type, 'uid', uid, 'code', code,
    'reason', reason, 'node', node, 'session', session, 'device', device, 'since_ms', since_ms,
    'last_seen_ms', last_seen_ms, 'at_ms', at_ms, ...)
  highest_id = id
  note_told(type, code)
  channel = channel and is_heard(channel) and channel
  if not channel and not is_watched(uid) then return id end
  local entry, more = {v = 1, id = id, type = type, uid = uid, code = tonumber(code), reason = reason, node = node,
    session = session, device = device, since_ms = tonumber(since_ms), last_seen_ms = tonumber(last_seen_ms),
    at_ms = tonumber(at_ms)}, {...}
  for i = 1, #more, 2 do entry[more[i]] = more[i] == 'grace_ms' and tonumber(more[i + 1]) or more[i + 1] end
  if channel then redis.call('PUBLISH', channel, cjson.encode(entry)) end
  if watched[uid] then
    entry.status, entry.status_ms = status, tonumber(status_ms)
    redis.call('PUBLISH', user_prefix .. uid, cjson.encode(entry))
  end
  return id
end

-- Writes the transition of a user who comes; returns its entry id. `is_away` and `meta`: as the session shows itself.
local function go_online(uid, device, session, code, reason, at_ms, is_away, meta)
  seen[uid] = false
  return emit(ARGV[5], 'online', code, reason, uid, device, session, at_ms, at_ms, at_ms,
    is_away and 'away' or 'online', at_ms, show_fields(is_away, meta))
end

-- Writes the transition of a user who goes, whose online event was entry `since_id`. `grace_ms`: digits of the grace
-- that the lost connection had, if it was lengthened; else "" or nil.
local function go_offline(since_id, since_ms, uid, device, session, code, reason, at_ms, last_seen_ms, grace_ms)
  -- `since_ms` may be by another node's clock, and is rounded up where `last_seen_ms` is rounded down.
  if tonumber(last_seen_ms) < tonumber(since_ms) then last_seen_ms = since_ms end
  if tonumber(at_ms) < tonumber(last_seen_ms) then at_ms = last_seen_ms end
  written[uid], seen[uid] = false, last_seen_ms
  emit(ARGV[6], 'offline', code, reason, uid, device, session, since_ms, last_seen_ms, at_ms, 'offline', at_ms,
    'since_id', since_id, optional('grace_ms', grace_ms ~= '' and grace_ms))
end

-- How a session shows itself travels as a text: "" plain; else "a" (away) or "-", and what follows is its `meta`.
local function show_as(session, profile)
  session.away = string.sub(profile, 1, 1) == 'a' or nil
  session.meta = #profile > 1 and string.sub(profile, 2) or nil
end

-- Whether a text goes before another by its bytes, wherever this server runs.
local function is_before(text, other)
  for i = 1, math.min(#text, #other) do
    local ours, theirs = string.byte(text, i), string.byte(other, i)
    if ours ~= theirs then return ours < theirs end
  end
  return #text < #other
end

-- Whether the user shows himself as one of two sessions rather than as the other: as one that is not away, then as the
-- one that logged in last, then as that of the later device.
local function goes_before(session, device, other, other_device)
  if (session.away == true) ~= (other.away == true) then return other.away == true end
  if session.login_ms ~= other.login_ms then return session.login_ms > other.login_ms end
  return is_before(other_device, device)
end

-- Returns how a user with several sessions shows himself: the status, and `meta`, nil if there is none.
local function shown(record)
  local device, session = next(record.sessions)
  for another, candidate in next, record.sessions, device do
    if goes_before(candidate, another, session, device) then device, session = another, candidate end
  end
  return session.away == true and 'away' or 'online', type(session.meta) == 'string' and session.meta or nil
end

-- Tells that a user who stays online shows himself otherwise than before, if he does. The session is the one by which
-- it came so; it may be gone.
local function tell_shown(uid, record, status_before, meta_before, device, session, at_ms)
  local status, meta = shown(record)
  local type, code, reason, status_ms = 'away', CODE_AWAY, 'away', at_ms
  if status == status_before then
    if meta == meta_before then return end
    type, code, reason = 'update', CODE_UPDATED, 'updated'
    status_ms = digits(record.state and record.state.since_ms or record.since_ms)
  elseif status == 'online' then
    code, reason = CODE_BACK, 'back'
  end
  local id = emit(nil, type, code, reason, uid, device, session, digits(record.since_ms), at_ms, at_ms, status, status_ms,
    'since_id', record.id, 'status', status, 'status_ms', status_ms, optional('meta', meta))
  record.state = {id = id, since_ms = tonumber(status_ms)}
end

-- Marks. After an outage a node's ends wait until others have registered, and what follows an end of the same user
-- waits with it. A login that waits so is marked: an end of the user's last session elsewhere must not make him
-- offline, but gives his record over to the marked session. A mark: [device, session, generation, login_ms,
-- idle_timeout_ms, profile].
local holders
local function holding()
  holders = holders or redis.call('SMEMBERS', holding_key)
  return holders
end

local function marks_field(uid)
  return uid .. '  held'
end

local function read_marks(id, uid)
  local key, field = node_prefix .. id, marks_field(uid)
  local text = owned[key] and owned[key][field]
  if text == nil then text = redis.call('HGET', key, field) end
  local ok, marks = pcall(cjson.decode, text or '[]')
  return ok and type(marks) == 'table' and marks or {}
end

-- Gives the record over to sessions that other nodes have marked, of logins before `ended_ms`; false: there are none.
local function give_over(record, uid, ended_ms)
  for _, id in ipairs(holding()) do
    local is_other = id ~= node and not is_fenced(id)
    local present = count(redis.call('HGET', node_prefix .. id, 'gen'))
    for _, mark in ipairs(is_other and read_marks(id, uid) or {}) do
      if type(mark) ~= 'table' then mark = {} end
      local entry = {session = mark[2], node = id, generation = mark[3], login_ms = mark[4], arrived_ms = now_ms,
        idle_timeout_ms = mark[5]}
      if type(mark[1]) == 'string' and is_session(entry) and mark[3] == present and mark[4] <= ended_ms then
        if type(mark[6]) == 'string' then show_as(entry, mark[6]) end
        record.sessions[mark[1]] = entry
        own(node_prefix .. id, uid .. ' ' .. mark[1], digits(mark[3]) .. ' ' .. mark[2])
      end
    end
  end
  return next(record.sessions) ~= nil
end

-- Takes a session that `record` names out of it: an offline event if it was the user's last, when it ended.
local function depart(record, uid, device, code, reason, at_ms, last_seen_ms, ended_ms, grace_ms)
  local present = record.sessions[device]
  local status, meta = shown(record)
  record.sessions[device] = nil
  own(node_prefix .. present.node, uid .. ' ' .. device, false)
  if next(record.sessions) or give_over(record, uid, ended_ms) then
    tell_shown(uid, record, status, meta, device, present.session, at_ms)
    write_record(uid, record)
  else
    go_offline(record.id, digits(record.since_ms), uid, device, present.session, code, reason, at_ms, last_seen_ms,
      grace_ms)
  end
end

-- Ends what a node owns under a field, "<uid> <device>", if the record still names that session, node and
-- generation; returns whether it did. `latest_ms`: when it was last seen at the latest; 0: not known.
local function end_owned(of_node, field, uid, device, owned_generation, session, latest_ms)
  local record = read_record(uid)
  local present = record and record.sessions[device]
  if not (present and present.session == session and present.node == of_node
      and present.generation == owned_generation) then
    own(node_prefix .. of_node, field, false)
    return false
  end
  if latest_ms == 0 or latest_ms > now_ms then latest_ms = now_ms end
  local last_seen_ms = math.max(record.since_ms, latest_ms)
  depart(record, uid, device, CODE_NODE_DOWN, 'node_down', digits(math.max(now_ms, last_seen_ms)),
    digits(last_seen_ms), now_ms)
  return true
end

-- Tells a node about one of its sessions; see `write_news`.
local news = {}  -- node id -> entries
local function tell(id, entry)
  news[id] = news[id] or {}
  table.insert(news[id], entry)
end

-- News are numbered in the inbox of a node, which its probe reads, and go over its control channel, which only hastens.
local INBOX_LIMIT = 50  -- a node that misses more finds out by comparing
local function write_news()
  for id, entries in pairs(news) do
    local key = node_prefix .. id
    local present = redis.call('HMGET', key, 'inbox', 'inbox_n')
    local ok, inbox = pcall(cjson.decode, #entries < INBOX_LIMIT and present[1] or '[]')
    if not ok or type(inbox) ~= 'table' then inbox = {} end
    local number = count(present[2])
    for i, entry in ipairs(entries) do
      entry.n = number + i
      inbox[#inbox + 1] = entry
      redis.call('PUBLISH', ARGV[7] .. id, cjson.encode(entry))
    end
    local last = {}
    for i = math.max(1, #inbox - INBOX_LIMIT + 1), #inbox do last[#last + 1] = inbox[i] end
    redis.call('HSET', key, 'inbox', cjson.encode(last), 'inbox_n', string.format('%.0f', number + #entries))
  end
end

-- Sets and removes the fields of a hash, or the members of a sorted set; `changes`: name -> value, or false.
local function write_all(key, changes, set, remove, value_first)
  local present, absent, n, m = {}, {}, 0, 0
  for name, value in pairs(changes) do
    if not value then
      m = m + 1
      absent[m] = name
    else
      if value_first then name, value = value, name end
      present[n + 1], present[n + 2] = name, value
      n = n + 2
    end
  end
  for first = 1, n, VALUES_A_CALL do
    redis.call(set, key, unpack(present, first, math.min(first + VALUES_A_CALL - 1, n)))
  end
  for first = 1, m, VALUES_A_CALL do
    redis.call(remove, key, unpack(absent, first, math.min(first + VALUES_A_CALL - 1, m)))
  end
end

-- Looks at some of what a node owns, from a cursor of HSCAN on; returns the next. `visit` takes each session: field,
-- uid, device, generation, session. What is damaged is removed, and so are fields that are no session's, but for those
-- that `is_kept`.
local function scan_owned(key, cursor, limit, visit, is_kept)
  local scan = redis.call('HSCAN', key, cursor, 'COUNT', limit)
  local found, uids = scan[2], {}
  for i = 1, #found, 2 do uids[#uids + 1] = string.match(found[i], '^(%S+) %S*$') end
  read_ahead(uids)
  ask_watched(uids)
  for i = 1, #found, 2 do
    local uid, device = string.match(found[i], '^(%S+) (%S*)$')
    local owned_generation, session = string.match(found[i + 1], '^(%d+) (.*)$')
    if uid and owned_generation then
      visit(found[i], uid, device, tonumber(owned_generation), session)
    elseif uid or not is_kept(found[i]) then
      own(key, found[i], false)
    end
  end
  return scan[1]
end

-- The last thing that a call does to records, `seen`, what nodes own, and the stream's length.
local function write_back()
  write_all(online_key, written, 'HSET', 'HDEL')
  write_all(seen_key, seen, 'ZADD', 'ZREM', true)
  for key, fields in pairs(owned) do write_all(key, fields, 'HSET', 'HDEL') end
  write_news()
  if highest_id ~= '' then redis.call('XTRIM', events_key, 'MAXLEN', '~', ARGV[8]) end
end

-- Forgets a few users whose `seen` is older than the retention; more than one batch can add.
local function trim_seen(limit)
  local old = redis.call('ZRANGEBYSCORE', seen_key, '-inf', now_ms - ARGV[9], 'LIMIT', 0, limit)
  if #old > 0 then redis.call('ZREM', seen_key, unpack(old)) end
end
