-- requires: effects shard record_cache entries event_texts profile shown_state
-- provides: CODE_LOGIN CODE_NODE_DOWN CODE_RETURNED go_offline go_online privacy_of_offline staying
-- Events of users. A *change* of a session causes them; it has the fields uid, device, session, code, reason, at_ms,
-- last_seen_ms and, of the end of a lost connection whose grace was lengthened, grace_ms. All but the names are digits.

local CODE_LOGIN, CODE_RETURNED, CODE_LOGOUT, CODE_NODE_DOWN = '1', '2', '100', '402'
local CODE_AWAY, CODE_BACK, CODE_UPDATED, CODE_ROOMS = '3', '4', '5', '8'

-- A name and a value, where there is one, before other arguments.
local function with(name, value, ...)
  if value then return name, value, ... end
  return ...
end

-- The fields of an event for a session that is not online, before others. `public`: see lib/shown_state.lua; nil: it is not
-- invisible.
local function with_status(status, public, ...)
  if public then return 'invisible', '1', 'public', public, ... end
  if status ~= 'online' then return 'status', status, ... end
  return ...
end

-- Adds to an event, the command of its entry, that others get no times of its user, and the rooms of the user; nil: none.
local function tell_of_user(command, privacy, rooms)
  if hides(privacy, 'l') then command[#command + 1], command[#command + 2] = 'hide', 'last_seen' end
  if rooms then command[#command + 1], command[#command + 2] = 'rooms', rooms end
end

-- Returns what an offline user hides; nil: nothing.
local function privacy_of_offline(uid)
  local text = left[uid]
  if text == nil then text = redis.call('HGET', left_key, uid) end
  return text and string.match(text, ' %+([il]+)$') or nil
end

-- Returns what clients are shown of an offline user who comes as invisible: how they left when they were visible.
local function public_of_offline(uid)
  local text, last_seen_ms = left[uid], seen[uid]
  if text == nil then
    text, last_seen_ms = redis.call('HGET', left_key, uid), redis.call('ZSCORE', seen_key, uid)
  end
  if not text or not last_seen_ms then return '' end
  local privacy = string.match(text, ' %+([il]+)$')
  if privacy then text = string.sub(text, 1, -#privacy - 3) end
  local public = string.match(text, '^%S+ %S+ %S+ (.*)$')
  if not public then
    if hides(privacy, 'l') then return '' end
    local code, id, ms = string.match(text, '^(%d+) (%d+%-%d+) (%-?%d+)$')
    if not code then return '' end
    public = table.concat({code, id, digits(string.match(id, '^%d+') + ms), digits(tonumber(last_seen_ms))}, ' ')
  end
  local public_ms = tonumber(string.match(public, '(%d+)$'))
  return public_ms and public_ms >= now_ms - seen_retention_ms and public or ''
end

-- Collects the online event of a user; returns its entry id and, of an invisible user, `public` of the record. `session`: the
-- one that has come; nil: a plain one. `devices`: their JSON, see `devices_text`, or false. `privacy`: of the user.
local function go_online(change, session, devices, privacy)
  local uid, at_ms, status = change.uid, change.at_ms, session and status_of(session) or 'online'
  local public = status == 'invisible' and public_of_offline(uid) or nil
  seen[uid], left[uid] = false, false
  local id, command = add_entry('online', change.code, 'uid', uid, 'code', change.code, 'reason', change.reason,
    'node', node, 'session', change.session, 'device', change.device, 'since_ms', at_ms, 'last_seen_ms', at_ms,
    'at_ms', at_ms,
    with_status(status, public, with_texts(session, 1, EVENT_TEXTS, with('devices', devices))))
  if privacy or rooms_in_use then tell_of_user(command, privacy, session and session.rooms) end
  publish(uid, id, command, online_channel, status, at_ms)
  return id, public
end

-- Collects the offline event of a user, who was online since `since_ms` (digits) with the entry `since_id`. `session`: the one
-- that has gone; nil: a plain one. `public`, `privacy`: of the record. `rooms`: that the user was in; nil: none.
local function go_offline(change, since_id, since_ms, session, public, privacy, rooms)
  local uid, code, at_ms, last_seen_ms = change.uid, change.code, change.at_ms, change.last_seen_ms
  -- `since_ms` may be by another node's clock, and is rounded up where `last_seen_ms` is rounded down.
  -- A difference converts digits faster than `tonumber`.
  if last_seen_ms - since_ms < 0 then last_seen_ms = since_ms end
  if at_ms - last_seen_ms < 0 then at_ms = last_seen_ms end
  records[uid], written[uid], seen[uid] = false, false, last_seen_ms
  -- With 'online' the event has no field `status`: its user is offline. It says whether the user was invisible.
  local id, command = add_entry('offline', code, 'uid', uid, 'code', code, 'reason', change.reason,
    'node', node, 'session', change.session, 'device', change.device, 'since_ms', since_ms, 'last_seen_ms', last_seen_ms,
    'at_ms', at_ms, 'since_id', since_id,
    with('grace_ms', change.grace_ms, with_status('online', public, with_texts(session, 1, EVENT_TEXTS))))
  if privacy or rooms then tell_of_user(command, privacy, rooms) end
  publish(uid, id, command, offline_channel, 'offline', at_ms)
  left[uid] = code .. ' ' .. id .. ' ' .. digits(at_ms - top_ms)
    .. (public and ' ' .. (public ~= '' and public or '-') or '')
  if privacy then left[uid] = left[uid] .. ' +' .. privacy end
end

local events  -- of users who stay online, once one is needed

-- Returns the functions that collect events of users who stay online. Most calls need none of them, and each definition takes
-- time in each call.
local function staying()
  if events then return events end
  events = {}

  -- The last fields of an event of a user who stays online, of whom a session is shown, before other arguments. `public`: what
  -- it says of an invisible user.
  local function state_fields(record, session, status, status_ms, public, ...)
    return 'since_id', record.id, 'status', said_status(status), 'status_ms', status_ms,
      with('invisible', status == 'invisible' and '1', with('public', public, with_texts(session, 1, SHOWN_TEXTS, ...)))
  end

  local function status_start(record)
    return digits(record.state and record.state.since_ms or record.since_ms)
  end

  -- Collects an event if what is shown of a user who stays online has changed; it becomes the latest entry of the user's state.
  -- `before`: the session that was shown. That of the change may be gone. `hid_times`: whether others got no times of the user;
  -- nil: as by now.
  function events.shown_changed(change, record, before, hid_times)
    local session, at_ms = shown(record), change.at_ms
    if show_the_same(session, before) and (hid_times == nil or hid_times == hides(record.privacy, 'l')) then return end
    local status, status_before, status_ms = status_of(session), status_of(before), at_ms
    local type, code, reason = 'update', CODE_UPDATED, 'updated'
    if status == status_before then
      status_ms = status_start(record)
    elseif status == 'invisible' or status_before == 'invisible' then
      record.public = nil
      if status == 'invisible' then
        record.public = hides(record.privacy, 'l') and '' or table.concat({CODE_LOGOUT, '*', at_ms, at_ms}, ' ')
      end
    elseif status == 'away' then
      type, code, reason = 'away', CODE_AWAY, 'away'
    elseif status_before == 'away' then
      type, code, reason = 'away', CODE_BACK, 'back'
    end
    local id, command = add_entry(type, code, 'uid', change.uid, 'code', code, 'reason', reason,
      'node', node, 'session', change.session, 'device', change.device, 'since_ms', digits(record.since_ms),
      'last_seen_ms', at_ms, 'at_ms', at_ms,
      state_fields(record, session, status, status_ms, record.public or status_before == 'invisible' and CODE_LOGIN,
        with('devices', device_events and devices_text(record.sessions))))
    if record.privacy or rooms_in_use then tell_of_user(command, record.privacy, rooms_of(record)) end
    publish(change.uid, id, command, nil, status, status_ms)
    record.state = {id = id, since_ms = tonumber(status_ms)}
    if record.public then record.public = string.gsub(record.public, '%*', id) end
  end

  -- Collects an event for a device of a user who stays online: it has come, or has gone. `session` is that of the device. The
  -- event has the user's state as above, and becomes its latest entry.
  function events.device(change, record, session)
    if not device_events then return end
    local shown_session, status_ms = shown(record), status_start(record)
    local status = status_of(shown_session)
    local id, command = add_entry('device', change.code, 'uid', change.uid, 'code', change.code, 'reason', change.reason,
      'node', node, 'session', change.session, 'device', change.device, 'since_ms', digits(record.since_ms),
      'last_seen_ms', change.last_seen_ms, 'at_ms', change.at_ms,
      state_fields(record, shown_session, status, status_ms, record.public,
        with_texts(session, SHOWN_TEXTS + 1, EVENT_TEXTS, with('devices', devices_text(record.sessions)))))
    if record.privacy or rooms_in_use then tell_of_user(command, record.privacy, rooms_of(record)) end
    publish(change.uid, id, command, nil, status, status_ms)
    record.state = {id = id, since_ms = tonumber(status_ms)}
  end

  -- Collects an event if the rooms of a user who stays online are not those `before`, as of `rooms_of`. It is no entry of the
  -- user's state, and is not published: those who watch the user are not told the rooms.
  function events.rooms(change, record, before)
    local rooms = rooms_of(record)
    if rooms == (before or nil) then return end
    local still_in, gone = {}, {}
    for name in string.gmatch(rooms or '', '[^ ]+') do still_in[name] = true end
    for name in string.gmatch(before or '', '[^ ]+') do
      if not still_in[name] then gone[#gone + 1] = name end
    end
    local status = status_of(shown(record))
    local _, command = add_entry('rooms', CODE_ROOMS, 'uid', change.uid, 'code', CODE_ROOMS, 'reason', 'rooms',
      'node', node, 'session', change.session, 'device', change.device, 'since_ms', digits(record.since_ms),
      'last_seen_ms', change.at_ms, 'at_ms', change.at_ms,
      'since_id', record.id, 'status', said_status(status), 'status_ms', status_start(record),
      with('invisible', status == 'invisible' and '1', with('rooms_left', gone[1] and table.concat(gone, ' '))))
    tell_of_user(command, record.privacy, rooms)
  end

  return events
end
