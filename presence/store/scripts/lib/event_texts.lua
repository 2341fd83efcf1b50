-- provides: EVENT_TEXTS SHOWN_TEXTS TEXTS with_texts
-- The texts of a session that its events tell: what it shows, facts of its login (`core/event_facts.py`), and its rooms.

-- In the record of a session, and under the same names in its events.
local TEXTS = {'meta', 'private', 'address', 'class', 'rooms'}
local SHOWN_TEXTS = 2  -- the first ones: its client may change them; the next ones are facts of its login
local EVENT_TEXTS = 4  -- the first ones: events have them as the session does; but rooms as the user, see `rooms_of`

-- Names and values of those TEXTS from one to another that a session has, before other arguments; nil has none.
local function with_texts(session, first, last, ...)
  if not session then return ... end
  for i = last, first, -1 do
    local text = session[TEXTS[i]]
    if text and type(text) == 'string' then return with_texts(session, first, i - 1, TEXTS[i], text, ...) end
  end
  return ...
end
