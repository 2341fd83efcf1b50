-- provides: SHOWN_TEXTS TEXTS with_texts
-- The texts of a session that its events tell: what it shows, and facts of its login (`core/event_facts.py`).

-- In the record of a session, and under the same names in its events.
local TEXTS = {'meta', 'private', 'address', 'class'}
local SHOWN_TEXTS = 2  -- the first ones: its client may change them; the others are facts of its login

-- Names and values of those TEXTS from one to another that a session has, before other arguments; nil has none.
local function with_texts(session, first, last, ...)
  if not session then return ... end
  for i = last, first, -1 do
    local text = session[TEXTS[i]]
    if text and type(text) == 'string' then return with_texts(session, first, i - 1, TEXTS[i], text, ...) end
  end
  return ...
end
