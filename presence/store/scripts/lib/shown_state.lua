-- requires: event_texts profile
-- provides: apply_privacy devices_text is_before rooms_of show_instead shown
-- What a user shows to others: the status and `meta` of the session that takes precedence.
--
-- One invisible session makes its user invisible. Clients are shown such a user as offline since then or, who came as
-- invisible, as before; `public` of the record says how: "" (nothing known) or "<code> <entry id> <since_ms> <last_seen_ms>".
-- The events of an invisible user have it, too; there "*" is the id of the entry itself. The entry with which the user
-- becomes visible has as `public` the code that clients are told. One who is invisible because the user is has it as well.

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

-- Gives sessions of a user with this privacy the status that they show; the own one of each stays in `own`. Returns a copy of
-- `shown_before`, a session that may be among them, from before.
local function apply_privacy(sessions, privacy, shown_before)
  local before = {}
  for name, value in pairs(shown_before or {}) do before[name] = value end
  for _, session in pairs(sessions) do
    local status = status_of(session)
    local own = status == 'invisible' and RANKS[session.own] and session.own or status
    session.away, session.status, session.own, forms[session] = nil, nil, nil, nil
    if hides(privacy, 'i') then
      session.status, session.own = 'invisible', own
    elseif own == 'away' then
      session.away = true
    elseif own ~= 'online' then
      session.status = own
    end
  end
  return before
end

-- Sets another profile of a session; returns a table with the one from before.
local function show_instead(session, profile)
  local before = {away = session.away, status = session.status}
  session.away, session.status, session.own, forms[session] = nil, nil, nil, nil
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

local unions = {}  -- texts of rooms, one after the other -> those of all, each once

-- Returns the rooms of a user: those of all sessions, in the order of their bytes with a space between two; nil: none.
local function rooms_of(record)
  local texts = {}
  for _, session in pairs(record.sessions) do
    local text = session.rooms
    if type(text) == 'string' and text ~= '' then texts[#texts + 1] = text end
  end
  if not texts[2] then return texts[1] end
  local all = table.concat(texts, ' ')
  local union = unions[all]
  if not union then
    local names, is_in = {}, {}
    for name in string.gmatch(all, '[^ ]+') do
      if not is_in[name] then names[#names + 1], is_in[name] = name, true end
    end
    table.sort(names, is_before)
    union = table.concat(names, ' ')
    unions[all] = union
  end
  return union
end
