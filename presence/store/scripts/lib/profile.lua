-- requires: event_texts
-- provides: RANKS changed_privacy hides is_plain_session said_status show_as show_the_same status_of text_or_nil
-- What a session shows. In a record `away` is true, or `status` is another one; without them it is online.
--
-- What a user hides, *privacy*, is `privacy` of the record: "i" the user is invisible, "l" others get no times of them. While
-- the user is invisible, each session has the status `invisible`, and `own` is its own one: so older nodes hide the user, too.

local STATUSES = {a = 'away', b = 'busy', d = 'dnd', i = 'invisible'}
local RANKS = {invisible = 5, dnd = 4, busy = 3, online = 2, away = 1}  -- the highest one takes precedence

-- Sets the profile of a session, which has none yet, from its text: "" is plain, otherwise what its node knows of the user's
-- privacy, in upper case, the letter of the status, and its TEXTS with a NUL between two; empty ones at the end are left out.
local function show_as(session, profile)
  local first = string.find(profile, '[^IL]') or 1
  local status = STATUSES[string.sub(profile, first, first)]
  first = first + 1
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

-- Whether a user hides something: "i" or "l".
local function hides(privacy, what)
  return privacy and string.find(privacy, what, 1, true) and true or false
end

-- Returns what a user hides after a change such as "+i-l"; nil: nothing.
local function changed_privacy(privacy, change)
  local changed = ''
  for _, each in ipairs({'i', 'l'}) do
    if hides(change, '+' .. each) or hides(privacy, each) and not hides(change, '-' .. each) then changed = changed .. each end
  end
  return changed ~= '' and changed or nil
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
