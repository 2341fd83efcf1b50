-- Removes users from the wheel; they go offline immediately.
--
-- KEYS and ARGV 1-5: see prelude.lua. ARGV
--   6 code and 7 reason of the offline events
--   8... uids, each once
-- Returns the uids that were online.

local code, reason, uids = ARGV[FIRST_OWN], ARGV[FIRST_OWN + 1], {unpack(ARGV, FIRST_OWN + 2)}
local removed, leaving = {}, {}
local values = read_users(uids)
for i, value in ipairs(values) do
  local tick = parse_user(value)
  if tick then append_to(leaving, tick, uids[i]) end
end
local refusal = refuse_slots(leaving)
if refusal then return refusal end

for i, value in ipairs(values) do
  local tick, last_seen_ms, since_id = parse_user(value)
  if tick then
    removed[#removed + 1] = uids[i]
    go_offline(uids[i], code, reason, last_seen_ms, since_id)
  end
end
remove_from_slots(leaving)
will_in_slices('HDEL', users_key, removed)
commit()
return removed
