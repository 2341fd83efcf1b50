-- Users leave by their own will: off the wheel, and offline at once.
--
-- KEYS and ARGV 1-5: see prelude.lua. ARGV
--   6 code and 7 reason of the offline events
--   8... uids, each once
-- Returns the uids who were there.

local refusal = refuse_unpermitted()
if refusal then return refusal end

local uids = {unpack(ARGV, FIRST_OWN + 2)}
local gone, leaving = {}, {}
for i, value in ipairs(read(uids)) do
  local tick, last_seen_ms, since_id = parse(value)
  if tick then
    add_to(leaving, tick, uids[i])
    gone[#gone + 1] = uids[i]
    go_offline(uids[i], ARGV[FIRST_OWN], ARGV[FIRST_OWN + 1], last_seen_ms, since_id)
  end
end
leave(leaving)
call_with('HDEL', users_key, gone)
return gone
