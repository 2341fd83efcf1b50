-- What a user shows to others: the status and `meta` of the session that takes precedence.
--
-- One invisible session makes its user invisible. Clients are shown such a user as offline since then or, who came as
-- invisible, as before; `public` of the record says how: "" (nothing known) or "<code> <entry id> <since_ms> <last_seen_ms>".
-- The events of an invisible user have it, too; there "*" is the id of the entry itself. The entry with which the user
-- becomes visible has as `public` the code that clients are told.

-- Whether a text is before another by its bytes, independent of the locale of this server.
local function is_before(text, other)
  for i = 1, math.min(#text, #other) do
    local ours, theirs = string.byte(text, i), string.byte(other, i)
    if ours ~= theirs then return ours < theirs end
  end
  return #text < #other
end

-- Whether a session is shown rather than another: by the rank of its status, then the later login, then the later device.
local function takes_precedence(session, device, other, other_device)
  local rank, other_rank = RANKS[status_of(session)], RANKS[status_of(other)]
  if rank ~= other_rank then return rank > other_rank end
  if session.login_ms ~= other.login_ms then return session.login_ms > other.login_ms end
  return is_before(other_device, device)
end

-- Returns the shown status of a user with several sessions, `meta` and `private`, nil if none.
local function shown(record)
  local device, session = next(record.sessions)
  for another, candidate in next, record.sessions, device do
    if takes_precedence(candidate, another, session, device) then device, session = another, candidate end
  end
  return status_of(session), text_or_nil(session.meta), text_or_nil(session.private)
end

-- Returns the sessions as JSON, [{device, status, since_ms, class, meta}, ...], for the field `devices` of entries; nil unless
-- the caller wants device events.
local function devices_text(sessions)
  if not device_events then return end
  local devices = {}
  for device, session in pairs(sessions) do
    devices[#devices + 1] = {device = device, status = said_status(status_of(session)), since_ms = session.login_ms,
      class = text_or_nil(session.class), meta = text_or_nil(session.meta)}
  end
  table.sort(devices, function(one, other) return is_before(one.device, other.device) end)
  return cjson.encode(devices)
end

-- Writes an event if the shown state of a user who stays online has changed. The session is the one that caused it; it
-- may be gone.
local function emit_if_shown_changed(uid, record, before, device, session, at_ms)
  local status, meta, private = shown(record)
  local type, code, reason, status_ms = 'update', CODE_UPDATED, 'updated', at_ms
  if status == before[1] then
    if meta == before[2] and private == before[3] then return end
    status_ms = digits(record.state and record.state.since_ms or record.since_ms)
  elseif status == 'invisible' or before[1] == 'invisible' then
    record.public = status == 'invisible' and table.concat({CODE_LOGOUT, '*', at_ms, at_ms}, ' ') or nil
  elseif status == 'away' then
    type, code, reason = 'away', CODE_AWAY, 'away'
  elseif before[1] == 'away' then
    type, code, reason = 'away', CODE_BACK, 'back'
  end
  local id = emit(nil, type, code, reason, uid, device, session, digits(record.since_ms), at_ms, at_ms, status, status_ms,
    'since_id', record.id, 'status', said_status(status), 'status_ms', status_ms,
    with('invisible', status == 'invisible' and '1',
      with('public', record.public or before[1] == 'invisible' and CODE_LOGIN,
        said(meta, private, nil, nil, devices_text(record.sessions)))))
  record.state = {id = id, since_ms = tonumber(status_ms)}
  if record.public then record.public = string.gsub(record.public, '%*', id) end
end

-- Writes an entry for a device of a user who stays online: it has come, or has gone. It has the state of the user as above,
-- and becomes the latest entry of that state.
local function emit_device(uid, record, device, session, code, reason, last_seen_ms, at_ms)
  if not device_events then return end
  local status, meta, private = shown(record)
  local status_ms = digits(record.state and record.state.since_ms or record.since_ms)
  local id = emit(nil, 'device', code, reason, uid, device, session.session, digits(record.since_ms), last_seen_ms, at_ms,
    status, status_ms, 'since_id', record.id, 'status', said_status(status), 'status_ms', status_ms,
    with('invisible', status == 'invisible' and '1', with('public', record.public,
      said(meta, private, text_or_nil(session.address), text_or_nil(session.class), devices_text(record.sessions)))))
  record.state = {id = id, since_ms = tonumber(status_ms)}
end
