-- Something was heard of users: each is due once he was silent for that long from now; who was not there comes online.
--
-- KEYS and ARGV 1-5: see prelude.lua. ARGV
--   6... uids, each once
-- Returns [1 if the wheel was not there, else 0, uids who came online ...]. Safe to send again: who has come has come,
-- and his event is in the stream once.

local uids = {unpack(ARGV, FIRST_OWN)}
local is_new = not hand
local tick = math.ceil((now_ms + idle_ms) / tick_ms)
local found = read(uids)
for i = 1, #uids do
  local refusal = not found[i] and refuse_unpermitted()
  if refusal then return refusal end
  if not found[i] then break end
end

if is_new then hand = math.floor(now_ms / tick_ms) end
if is_new or hand >= tick then redis.call('HSET', wheel_key, 'hand', digits(math.min(hand, tick - 1))) end
tick = digits(tick)
local came, entering, leaving, values = {is_new and 1 or 0}, {}, {}, {}
for i, uid in ipairs(uids) do
  local old, _, since_id = parse(found[i])
  if not old then
    since_id = go_online(uid)
    came[#came + 1] = uid
  elseif old ~= tick then
    add_to(leaving, old, uid)
  end
  if old ~= tick then entering[#entering + 1] = uid end
  values[2 * i - 1], values[2 * i] = uid, tick .. ' ' .. now_digits .. ' ' .. since_id
end
leave(leaving)
call_with('SADD', slot_prefix .. tick, entering)
call_with('HSET', users_key, values)
return came
