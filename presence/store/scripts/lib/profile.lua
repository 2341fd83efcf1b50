-- What a session shows. In a record `away` is true, or `status` is another one; without them it is online.

local STATUSES = {a = 'away', b = 'busy', d = 'dnd', i = 'invisible'}
local RANKS = {invisible = 5, dnd = 4, busy = 3, online = 2, away = 1}  -- the highest one takes precedence

local TEXTS = {'meta', 'private', 'address', 'class'}

-- Sets a field to a value or nil. Lua would make room for a new field that is nil.
local function set(session, name, value)
  if value or session[name] ~= nil then session[name] = value end
end

-- Sets the profile of a session from its text: "" is plain, otherwise the letter of the status, followed by its TEXTS with
-- a NUL between two; empty ones at the end are left out.
local function show_as(session, profile)
  local status, first = STATUSES[string.sub(profile, 1, 1)], 2
  set(session, 'away', status == 'away' or nil)
  set(session, 'status', status ~= 'away' and status or nil)
  for i = 1, #TEXTS do
    local text
    if first <= #profile then
      local last = string.find(profile, '\0', first, true) or #profile + 1
      if first < last then text = string.sub(profile, first, last - 1) end
      first = last + 1
    end
    set(session, TEXTS[i], text)
  end
end

local function status_of(session)
  return session.away == true and 'away' or RANKS[session.status] and session.status or 'online'
end

local function is_plain_session(session)
  return session.away == nil and session.status == nil and session.meta == nil and session.private == nil
    and session.address == nil and session.class == nil
end

local function text_or_nil(value)
  return type(value) == 'string' and value or nil
end
