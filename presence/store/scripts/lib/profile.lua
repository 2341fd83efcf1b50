-- What a session shows. In a record `away` is true, or `status` is "busy" or "dnd"; without them it is online.

local STATUSES = {a = 'away', b = 'busy', d = 'dnd'}
local LETTERS = {online = '-', away = 'a', busy = 'b', dnd = 'd'}

-- Sets the profile of a session from its text: "" is plain, otherwise the letter of the status, followed by its `meta`,
-- and by a NUL and `private` if it has that.
local function show_as(session, profile)
  local status, separator = STATUSES[string.sub(profile, 1, 1)], string.find(profile, '\0', 2, true)
  local meta = string.sub(profile, 2, separator and separator - 1)
  session.away = status == 'away' or nil
  session.status = status ~= 'away' and status or nil
  session.meta = meta ~= '' and meta or nil
  session.private = separator and string.sub(profile, separator + 1) or nil
end

local function status_of(session)
  return session.away == true and 'away' or LETTERS[session.status] and session.status or 'online'
end

local function is_plain_session(session)
  return session.away == nil and session.status == nil and session.meta == nil and session.private == nil
end

local function text_or_nil(value)
  return type(value) == 'string' and value or nil
end
