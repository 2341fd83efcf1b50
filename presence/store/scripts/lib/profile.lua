-- requires: event_texts
-- provides: RANKS is_plain_session said_status show_as show_the_same status_of text_or_nil
-- What a session shows. In a record `away` is true, or `status` is another one; without them it is online.

local STATUSES = {a = 'away', b = 'busy', d = 'dnd', i = 'invisible'}
local RANKS = {invisible = 5, dnd = 4, busy = 3, online = 2, away = 1}  -- the highest one takes precedence

-- Sets the profile of a session, which has none yet, from its text: "" is plain, otherwise the letter of the status,
-- followed by its TEXTS with a NUL between two; empty ones at the end are left out.
local function show_as(session, profile)
  local status, first = STATUSES[string.sub(profile, 1, 1)], 2
  if status == 'away' then session.away = true elseif status then session.status = status end
  for i = 1, #TEXTS do
    if first > #profile then return end
    local last = string.find(profile, '\0', first, true) or #profile + 1
    if first < last then session[TEXTS[i]] = string.sub(profile, first, last - 1) end
    first = last + 1
  end
end

local function status_of(session)
  return session.away == true and 'away' or RANKS[session.status] and session.status or 'online'
end

-- Returns the status in events, where an invisible user is online.
local function said_status(status)
  return status == 'invisible' and 'online' or status
end

local function is_plain_session(session)
  for i = 1, #TEXTS do
    if session[TEXTS[i]] ~= nil then return false end
  end
  return session.away == nil and session.status == nil
end

local function text_or_nil(value)
  return type(value) == 'string' and value or nil
end

-- Whether two sessions show the same status and SHOWN_TEXTS.
local function show_the_same(session, other)
  if status_of(session) ~= status_of(other) then return false end
  for i = 1, SHOWN_TEXTS do
    local text, another = session[TEXTS[i]], other[TEXTS[i]]
    if text ~= another and text_or_nil(text) ~= text_or_nil(another) then return false end
  end
  return true
end
