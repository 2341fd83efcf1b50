-- requires: effects shard record_cache notices entries profile shown_state events
-- provides: FIRST_ROOMS PLAIN_RECORD UNCERTAIN_LOGIN_MS add_pending_login collect_writes drop_pending_logins end_without_record
-- provides: hand_to_pending_login lateness nodes_with_pending_logins remove_pending_logins remove_session set_owned
-- provides: stay_online trim_seen write_record
-- Removes sessions from records, moves pending logins into them, and collects all writes at the end of a call.

-- Pattern of a record with one plain session; captures id, since_ms, device, session, node. Nearly all users have such a
-- record, and a pattern takes a third of the time of a JSON parser. Other records go to the parser.
local PLAIN_RECORD = '^{"id":"([%d%-]+)","since_ms":(%d+),"sessions":{"([^"\\]*)":{"session":"([^"\\]+)","node":"([^"\\]+)",'
  .. '"generation":%d+,"login_ms":%d+,"arrived_ms":%d+,"idle_timeout_ms":%d+}}}$'

-- Whether a text needs no escapes in JSON. Nodes and devices are few, and a pattern takes time for each character.
local known_plain = {}
local function is_plain(text)
  local answer = known_plain[text]
  if answer == nil then
    answer = not string.find(text, '[%c"\\]')
    known_plain[text] = answer
  end
  return answer
end

-- Removes the infinite numbers from unknown fields of a record: JSON has none, but `1e999` is read as one. In an array they
-- become null, because one with many holes cannot be encoded either.
local function drop_infinite(value)
  for name, each in pairs(value) do
    if type(each) == 'table' then drop_infinite(each) end
    if type(each) == 'number' and each - each ~= 0 then value[name] = type(name) == 'number' and cjson.null or nil end
  end
end

-- Returns the JSON of a record, in the form of PLAIN_RECORD if possible.
local function encode_record(record)
  local device, session = next(record.sessions)
  if next(record.sessions, device) ~= nil or record.state ~= nil or record.privacy or session.late_ms or not is_plain_session(session)
      or type(session.generation) ~= 'number' or type(session.idle_timeout_ms) ~= 'number'
      or not (is_plain(device) and is_plain(session.node) and string.find(record.id, '^%d+%-%d+$'))
      or string.find(session.session, '[%c"\\]') then
    local ok, text = pcall(cjson.encode, record)
    if ok then return text end
    drop_infinite(record)
    return cjson.encode(record)
  end
  return '{"id":"' .. record.id .. '","since_ms":' .. digits(record.since_ms) .. ',"sessions":{"' .. device
    .. '":{"session":"' .. session.session .. '","node":"' .. session.node .. '","generation":'
    .. digits(session.generation) .. ',"login_ms":' .. digits(session.login_ms) .. ',"arrived_ms":'
    .. digits(session.arrived_ms) .. ',"idle_timeout_ms":' .. digits(session.idle_timeout_ms) .. '}}}'
end

local function write_record(uid, record)
  records[uid], written[uid] = record, true
end

local function set_owned(id, field, value)
  local fields = owned[id]
  if not fields then
    fields = {}
    owned[id] = fields
  end
  fields[field] = value
end

local FIRST_ROOMS = 'now'  -- `rooms_in_use` of the call that puts the first session with rooms into a record

local UNCERTAIN_LOGIN_MS = 5000  -- without knowledge of clocks, the order of logins nearer than this is uncertain

-- Returns `late_ms` of a session from the ms between the earliest and the latest time of its login; nil if they are few.
local function lateness(ms)
  return ms > UNCERTAIN_LOGIN_MS and ms or nil
end

-- Pending logins. After an outage the ends of a node wait until other nodes have registered, and later changes of the
-- same user wait with them. A login that waits so is stored as pending: the end of the user's last session elsewhere must
-- not make the user offline, but hands the record to the pending login. It counts until its node registers the session,
-- opens another generation or is swept: like a session on record it outlasts the fence, of which its node may not know yet.
-- If the sweep has passed the place of a session that is handed over, its next pass finds it. A pending login: [device,
-- session, generation, login_ms, idle_timeout_ms, profile, earliest possible login_ms].
local pending_nodes
local function nodes_with_pending_logins()
  pending_nodes = pending_nodes or redis.call('SMEMBERS', pending_nodes_key)
  return pending_nodes
end

local pending_logins = {}  -- uid -> JSON of the pending logins at the calling node, as this call will write it; false: none

local function read_pending_logins(id, uid)
  local text
  if id == node then text = pending_logins[uid] end
  if text == nil then text = redis.call('HGET', pending_logins_key(id), uid) end
  return decoded(text or nil)
end

local has_pending_logins  -- whether the calling node has any; nil: not asked yet

local function add_pending_login(change, login_ms, idle_timeout_ms, profile, earliest_ms)
  local logins = read_pending_logins(node, change.uid)
  logins[#logins + 1] = {change.device, change.session, generation, login_ms, idle_timeout_ms, profile, earliest_ms}
  pending_logins[change.uid], has_pending_logins = cjson.encode(logins), true
end

local function remove_pending_logins(uid)
  if has_pending_logins == nil then has_pending_logins = redis.call('EXISTS', pending_logins_key(node)) == 1 end
  if has_pending_logins then pending_logins[uid] = false end
end

-- Deletes all pending logins of a node.
local function drop_pending_logins(id)
  will('PEXPIRE', pending_logins_key(id), 0)
  will('SREM', pending_nodes_key, id)
end

-- Puts pending logins of other nodes from before `ended_ms` into the record, which has lost its last device, `gone`, and
-- collects their events. Returns the session that was shown last, or nil if there are none. Of several logins of a device the
-- last one counts: a device comes once. A fenced node may be dead, and cannot say that a client has left it for another node:
-- its pending login of the device `gone` does not count if the session that was on record is the later one.
local function hand_to_pending_login(record, uid, gone, gone_entry, ended_ms)
  local devices, entries, sessions = {}, {}, record.sessions
  for _, id in ipairs(nodes_with_pending_logins()) do
    local present = count(redis.call('HGET', node_prefix .. id, 'gen'))
    for _, login in ipairs(id ~= node and read_pending_logins(id, uid) or {}) do
      if type(login) ~= 'table' then login = {} end
      local device, entry = login[1], {session = login[2], node = id, generation = login[3], login_ms = login[4],
        arrived_ms = now_ms, idle_timeout_ms = login[5]}
      local earliest_ms = type(login[7]) == 'number' and login[7] or login[4]
      if type(device) == 'string' and is_session(entry) and login[3] == present and earliest_ms <= ended_ms
          and not (device == gone and login[4] < gone_entry.login_ms and is_fenced(id)) then
        entry.late_ms = lateness(login[4] - earliest_ms)
        if type(login[6]) == 'string' then show_as(entry, login[6]) end
        if entry.rooms then rooms_in_use = rooms_in_use or FIRST_ROOMS end
        if record.privacy then apply_privacy({entry}, record.privacy) end
        if not entries[device] then devices[#devices + 1] = device end
        entries[device] = entry
      end
    end
  end
  if #devices == 0 then return nil end
  local before = gone_entry
  sessions[gone] = entries[gone] or gone_entry  -- it is on record until its own event
  for _, device in ipairs(devices) do
    local entry = entries[device]
    set_owned(entry.node, uid .. ' ' .. device, digits(entry.generation) .. ' ' .. entry.session)
    if device ~= gone then
      local change = {uid = uid, device = device, session = entry.session, code = CODE_LOGIN, reason = 'login',
        last_seen_ms = digits(now_ms), at_ms = digits(now_ms)}
      sessions[device] = entry
      staying().shown_changed(change, record, before)
      staying().device(change, record, entry)
      before = shown(record)
    end
  end
  sessions[gone] = entries[gone]
  return before
end

-- Writes the record of a user who stays online without a session, `gone`; collects the events. `before`: the session that was
-- shown. `rooms`: of the user until now.
local function stay_online(change, record, gone, before, rooms)
  staying().shown_changed(change, record, before)
  if not record.sessions[change.device] then staying().device(change, record, gone) end
  if rooms_in_use then staying().rooms(change, record, rooms) end
  write_record(change.uid, record)
end

-- Removes the session of a change from a record; collects an offline event if it was the last of the user.
local function remove_session(change, record, ended_ms)
  local uid, device = change.uid, change.device
  local present = record.sessions[device]
  local has_another_session = next(record.sessions, next(record.sessions))
  local before, rooms = has_another_session and shown(record), rooms_in_use and rooms_of(record)
  record.sessions[device] = nil
  set_owned(present.node, uid .. ' ' .. device, false)
  before = before or hand_to_pending_login(record, uid, device, present, ended_ms)
  if before then
    stay_online(change, record, present, before, rooms)
  else
    go_offline(change, record.id, digits(record.since_ms), present, record.public, record.privacy, rooms)
  end
end

-- Ends the user of a change whose record is lost or unreadable, although the index has a session of it: so the user was
-- online, and what is left of the record may say since when. Their other sessions, if any, are registered again by their
-- nodes. Returns whether it did.
local function end_without_record(change)
  local uid = change.uid
  if read_record(uid) or written[uid] ~= nil then return false end
  local since_id, since_ms = remains_of_record(uid)
  go_offline(change, since_id or '0-0', since_ms or change.last_seen_ms)
  return true
end

-- Collects the setting and removal of fields of a hash, or of members of a sorted set; `values`: name -> value, or false.
local function collect_fields(key, values, set, remove, value_first)
  if not next(values) then return end
  local setting, removing, n, m = {set, key}, {remove, key}, 2, 2  -- effects
  for name, value in pairs(values) do
    if value then
      if value_first then name, value = value, name end
      setting[n + 1], setting[n + 2] = name, value
      n = n + 2
      if n > VALUES_A_CALL then
        add_effect(setting)
        setting, n = {set, key}, 2
      end
    else
      m = m + 1
      removing[m] = name
      if m > VALUES_A_CALL then
        add_effect(removing)
        removing, m = {remove, key}, 2
      end
    end
  end
  if n > 2 then add_effect(setting) end
  if m > 2 then add_effect(removing) end
end

-- Whether the calling node has pending logins after this call.
local function keeps_pending_logins()
  local removed = {}
  for uid, text in pairs(pending_logins) do
    if text then return true end
    removed[#removed + 1] = uid
  end
  local before, gone = redis.call('HLEN', pending_logins_key(node)), 0
  for _, uid in ipairs(before > 0 and removed or {}) do
    gone = gone + redis.call('HEXISTS', pending_logins_key(node), uid)
  end
  return before > gone
end

-- Collects the writes of a call: records, `seen`, `left`, owned sessions, pending logins and notices.
local function collect_writes()
  for uid, is_online in pairs(written) do written[uid] = is_online and encode_record(records[uid]) end
  collect_fields(online_key, written, 'HSET', 'HDEL')
  collect_fields(seen_key, seen, 'ZADD', 'ZREM', true)
  collect_fields(left_key, left, 'HSET', 'HDEL')
  for id, fields in pairs(owned) do collect_fields(sessions_key(id), fields, 'HSET', 'HDEL') end
  collect_fields(pending_logins_key(node), pending_logins, 'HSET', 'HDEL')
  if next(pending_logins) then will(keeps_pending_logins() and 'SADD' or 'SREM', pending_nodes_key, node) end
  if rooms_in_use == FIRST_ROOMS then will('HSET', meta_key, 'rooms', '1') end
  collect_notices()
end

-- Collects the removal of a few users whose `seen` is older than the retention; more than one batch can add.
local function trim_seen(limit)
  local old = redis.call('ZRANGEBYSCORE', seen_key, '-inf', now_ms - seen_retention_ms, 'LIMIT', 0, limit)
  for i = #old, 1, -1 do
    if seen[old[i]] ~= nil then table.remove(old, i) end  -- this call changes it anyway
  end
  if #old > 0 then
    will('ZREM', seen_key, unpack(old))
    will('HDEL', left_key, unpack(old))
  end
end

