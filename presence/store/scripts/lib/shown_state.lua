-- What a user shows to others: the status and `meta` of the session that takes precedence.

-- Sets the profile of a session from its text: "" is plain, otherwise "a" (away) or "-", followed by its `meta`.
local function show_as(session, profile)
  session.away = string.sub(profile, 1, 1) == 'a' or nil
  session.meta = #profile > 1 and string.sub(profile, 2) or nil
end

-- Whether a text is before another by its bytes, independent of the locale of this server.
local function is_before(text, other)
  for i = 1, math.min(#text, #other) do
    local ours, theirs = string.byte(text, i), string.byte(other, i)
    if ours ~= theirs then return ours < theirs end
  end
  return #text < #other
end

-- Whether a session is shown rather than another: one that is not away, then the later login, then the later device.
local function takes_precedence(session, device, other, other_device)
  if (session.away == true) ~= (other.away == true) then return other.away == true end
  if session.login_ms ~= other.login_ms then return session.login_ms > other.login_ms end
  return is_before(other_device, device)
end

-- Returns the shown status of a user with several sessions, and `meta`, nil if none.
local function shown(record)
  local device, session = next(record.sessions)
  for another, candidate in next, record.sessions, device do
    if takes_precedence(candidate, another, session, device) then device, session = another, candidate end
  end
  return session.away == true and 'away' or 'online', type(session.meta) == 'string' and session.meta or nil
end

-- Writes an event if the shown state of a user who stays online has changed. The session is the one that caused it; it
-- may be gone.
local function emit_if_shown_changed(uid, record, status_before, meta_before, device, session, at_ms)
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

