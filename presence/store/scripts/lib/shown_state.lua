-- What a user shows to others: the status and `meta` of the session that takes precedence.
--
-- One invisible session makes its user invisible. Clients are shown such a user as offline since then or, who came as
-- invisible, as before; `public` of the record says how: "" (nothing known) or "<code> <entry id> <since_ms> <last_seen_ms>".
-- The events of an invisible user have it, too; there "*" is the id of the entry itself. The entry with which the user
-- becomes visible has as `public` the code that clients are told.

-- A call may have hundreds of updates of a user with dozens of devices. So what it computes of a session is kept in `forms`
-- until the session changes, and its devices are sorted once.

-- Most bytes of the `meta` of a user's devices together in an entry; if there are more, the devices come without. Readers of
-- records show clients the same, see DEVICES_META_MAX_BYTES in watching/user_states.py.
local DEVICES_META_MAX_BYTES = 2048

local COMPARED_BYTES = 16

-- Whether a text is before another by its bytes, independent of the locale of this server.
local function is_before(text, other)
  local first = 1
  while first <= #text
      and string.sub(text, first, first + COMPARED_BYTES - 1) == string.sub(other, first, first + COMPARED_BYTES - 1) do
    first = first + COMPARED_BYTES
  end
  for i = first, math.min(#text, #other) do
    local ours, theirs = string.byte(text, i), string.byte(other, i)
    if ours ~= theirs then return ours < theirs end
  end
  return #text < #other
end

local forms = {}  -- session -> {rank, full and bare, see `device_texts`}; removed when the session changes

local function form_of(session)
  local form = forms[session]
  if not form then
    form = {rank = RANKS[status_of(session)]}
    forms[session] = form
  end
  return form
end

-- Returns the session whose status and texts are shown of a user: the one with the first status by rank, then the later
-- login, then the later device.
local function shown(record)
  local device, session = next(record.sessions)
  local another, candidate = next(record.sessions, device)
  local rank = candidate and form_of(session).rank
  while candidate do
    local its_rank = form_of(candidate).rank
    if its_rank > rank or (its_rank == rank and (candidate.login_ms > session.login_ms
        or (candidate.login_ms == session.login_ms and is_before(device, another)))) then
      device, session, rank = another, candidate, its_rank
    end
    another, candidate = next(record.sessions, another)
  end
  return session
end

-- Sets another profile of a session; returns a table with the one from before.
local function show_instead(session, profile)
  local before = {away = session.away, status = session.status}
  session.away, session.status, forms[session] = nil, nil, nil
  for i = 1, #TEXTS do
    local name = TEXTS[i]
    if session[name] ~= nil then before[name], session[name] = session[name], nil end
  end
  show_as(session, profile)
  return before
end

local listings = {}  -- sessions of a record -> {names = their devices in order, has = {device -> true}}

-- Returns the devices of a record in the order of their bytes.
local function ordered_devices(sessions)
  local listing = listings[sessions]
  if not listing then
    listing = {names = {}, has = {}}
    listings[sessions] = listing
  end
  local names, has = listing.names, listing.has
  for i = #names, 1, -1 do
    if not sessions[names[i]] then has[table.remove(names, i)] = nil end
  end
  for device in pairs(sessions) do
    if not has[device] then
      local first, last = 1, #names
      while first <= last do
        local middle = math.floor((first + last) / 2)
        if is_before(device, names[middle]) then last = middle - 1 else first = middle + 1 end
      end
      table.insert(names, first, device)
      has[device] = true
    end
  end
  return names
end

-- Returns a session as JSON for the field `devices`, with and without its `meta`.
local function device_texts(device, session)
  local form = form_of(session)
  if not form.bare then
    local shown_device = {device = device, status = said_status(status_of(session)), since_ms = session.login_ms,
      class = text_or_nil(session.class)}
    form.bare = cjson.encode(shown_device)
    shown_device.meta = text_or_nil(session.meta)
    form.full = shown_device.meta and cjson.encode(shown_device) or form.bare
  end
  return form.full, form.bare
end

-- Returns the sessions as JSON, [{device, status, since_ms, class, meta}, ...], for the field `devices` of entries.
local function devices_text(sessions)
  local full, bare, meta_bytes = {}, {}, 0
  for i, device in ipairs(ordered_devices(sessions)) do
    local session = sessions[device]
    full[i], bare[i] = device_texts(device, session)
    meta_bytes = meta_bytes + #(text_or_nil(session.meta) or '')
  end
  return '[' .. table.concat(meta_bytes <= DEVICES_META_MAX_BYTES and full or bare, ',') .. ']'
end

-- Returns what clients are shown of an offline user who comes as invisible: how they left when they were visible.
local function public_of_offline(uid)
  local text, last_seen_ms = left[uid], seen[uid]
  if text == nil then
    text, last_seen_ms = redis.call('HGET', left_key, uid), redis.call('ZSCORE', seen_key, uid)
  end
  if not text or not last_seen_ms then return '' end
  local public = string.match(text, '^%S+ %S+ %S+ (.*)$')
  if not public then
    local code, id, ms = string.match(text, '^(%d+) (%d+%-%d+) (%-?%d+)$')
    if not code then return '' end
    public = table.concat({code, id, digits(string.match(id, '^%d+') + ms), digits(tonumber(last_seen_ms))}, ' ')
  end
  local public_ms = tonumber(string.match(public, '(%d+)$'))
  return public_ms and public_ms >= now_ms - seen_retention_ms and public or ''
end

-- Changes and events. A *change* of a session causes events; it has the fields uid, device, session, code, reason, at_ms,
-- last_seen_ms and, of the end of a lost connection whose grace was lengthened, grace_ms. All but the names are digits.

-- Writes the online event of a user; returns its entry id and, of an invisible user, `public` of the record. `session`: the
-- one that has come; nil: a plain one. `devices`: their JSON, see `devices_text`, or false.
local function go_online(change, session, devices)
  local uid, at_ms, status = change.uid, change.at_ms, session and status_of(session) or 'online'
  local public = status == 'invisible' and public_of_offline(uid) or nil
  seen[uid], left[uid] = false, false
  local id, command = add_entry('online', change.code, 'uid', uid, 'code', change.code, 'reason', change.reason,
    'node', node, 'session', change.session, 'device', change.device, 'since_ms', at_ms, 'last_seen_ms', at_ms,
    'at_ms', at_ms,
    with('status', said_status(status) ~= 'online' and status, with_public(public,
      with_texts(session, 1, #TEXTS, with('devices', devices)))))
  publish(uid, id, command, online_channel, status, at_ms)
  return id, public
end

-- Writes the offline event of a user, who was online since `since_ms` (digits) with the entry `since_id`. `session`: the one
-- that has gone; nil: a plain one. `public`: of the record.
local function go_offline(change, since_id, since_ms, session, public)
  local uid, code, at_ms, last_seen_ms = change.uid, change.code, change.at_ms, change.last_seen_ms
  -- `since_ms` may be by another node's clock, and is rounded up where `last_seen_ms` is rounded down.
  -- A difference converts digits faster than `tonumber`.
  if last_seen_ms - since_ms < 0 then last_seen_ms = since_ms end
  if at_ms - last_seen_ms < 0 then at_ms = last_seen_ms end
  records[uid], written[uid], seen[uid] = false, false, last_seen_ms
  local id, command = add_entry('offline', code, 'uid', uid, 'code', code, 'reason', change.reason,
    'node', node, 'session', change.session, 'device', change.device, 'since_ms', since_ms, 'last_seen_ms', last_seen_ms,
    'at_ms', at_ms, 'since_id', since_id,
    with('grace_ms', change.grace_ms, with_public(public, with_texts(session, 1, #TEXTS))))
  publish(uid, id, command, offline_channel, 'offline', at_ms)
  left[uid] = code .. ' ' .. id .. ' ' .. digits(at_ms - top_ms)
    .. (public and ' ' .. (public ~= '' and public or '-') or '')
end

-- The last fields of an event of a user who stays online, of whom a session is shown, before other arguments. `public`: what
-- it says of an invisible user.
local function state_fields(record, session, status_ms, public, ...)
  local status = status_of(session)
  return 'since_id', record.id, 'status', said_status(status), 'status_ms', status_ms,
    with('invisible', status == 'invisible' and '1', with('public', public, with_texts(session, 1, SHOWN_TEXTS, ...)))
end

local function status_start(record)
  return digits(record.state and record.state.since_ms or record.since_ms)
end

-- Writes an event if what is shown of a user who stays online has changed; it becomes the latest entry of the user's state.
-- `before`: the session that was shown. That of the change may be gone.
local function emit_if_shown_changed(change, record, before)
  local session, at_ms = shown(record), change.at_ms
  if show_the_same(session, before) then return end
  local status, status_before, status_ms = status_of(session), status_of(before), at_ms
  local type, reason = 'update', 'updated'
  if status == status_before then
    status_ms = status_start(record)
  elseif status == 'invisible' or status_before == 'invisible' then
    record.public = status == 'invisible' and table.concat({CODES.logout, '*', at_ms, at_ms}, ' ') or nil
  elseif status == 'away' then
    type, reason = 'away', 'away'
  elseif status_before == 'away' then
    type, reason = 'away', 'back'
  end
  local uid, code = change.uid, CODES[reason]
  local id, command = add_entry(type, code, 'uid', uid, 'code', code, 'reason', reason,
    'node', node, 'session', change.session, 'device', change.device, 'since_ms', digits(record.since_ms),
    'last_seen_ms', at_ms, 'at_ms', at_ms,
    state_fields(record, session, status_ms, record.public or status_before == 'invisible' and CODES.login,
      with('devices', device_events and devices_text(record.sessions))))
  publish(uid, id, command, nil, status, status_ms)
  record.state = {id = id, since_ms = tonumber(status_ms)}
  if record.public then record.public = string.gsub(record.public, '%*', id) end
end

-- Writes an event for a device of a user who stays online: it has come, or has gone. `session` is that of the device. The
-- event has the user's state as above, and becomes its latest entry.
local function emit_device(change, record, session)
  if not device_events then return end
  local shown_session, status_ms = shown(record), status_start(record)
  local id, command = add_entry('device', change.code, 'uid', change.uid, 'code', change.code, 'reason', change.reason,
    'node', node, 'session', change.session, 'device', change.device, 'since_ms', digits(record.since_ms),
    'last_seen_ms', change.last_seen_ms, 'at_ms', change.at_ms,
    state_fields(record, shown_session, status_ms, record.public,
      with_texts(session, SHOWN_TEXTS + 1, #TEXTS, with('devices', devices_text(record.sessions)))))
  publish(change.uid, id, command, nil, status_of(shown_session), status_ms)
  record.state = {id = id, since_ms = tonumber(status_ms)}
end
