-- Restarts the idle time-out of users; those that were not online come online.
--
-- KEYS and ARGV 1-5: see prelude.lua. ARGV
--   6... uids, each once
-- Returns [1 if there was no wheel, else 0, uids that came online ...]. The call may be repeated: a user who is online
-- gets no second event.

local uids = {unpack(ARGV, FIRST_OWN)}
local is_new = not hand
local tick = math.ceil((now_ms + idle_ms) / tick_ms)
local found = read_users(uids)
local last_tick = tick
tick = digits(tick)
local entering, leaving = {}, {}
for i, uid in ipairs(uids) do
  local old_tick = parse_user(found[i])
  if old_tick and old_tick ~= tick then append_to(leaving, old_tick, uid) end
  if old_tick ~= tick then entering[#entering + 1] = uid end
end
local refusal = refuse_slot(tick) or refuse_slots(leaving)
if refusal then return refusal end

if is_new then begin_search() end
if hand >= last_tick then will('HSET', wheel_key, 'hand', digits(math.min(hand, last_tick - 1))) end
local reply, values = {is_new and 1 or 0}, {}
for i, uid in ipairs(uids) do
  local old_tick, _, since_id = parse_user(found[i])
  if not old_tick then
    since_id = go_online(uid)
    reply[#reply + 1] = uid
  end
  values[2 * i - 1], values[2 * i] = uid, tick .. ' ' .. now_digits .. ' ' .. since_id
end
remove_from_slots(leaving)
will_in_slices('SADD', slot_prefix .. tick, entering)
will_in_slices('HSET', users_key, values)
commit()
return reply
