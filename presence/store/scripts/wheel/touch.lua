-- Something was heard of users: each is due once he was silent for that long from now; who was not there comes online.
--
-- KEYS and ARGV 1-5: see prelude.lua. ARGV
--   6... uids, each once
-- Returns [1 if the wheel was not there, else 0, uids who came online ...]. Safe to send again: who has come has come,
-- and his event is in the stream once.

local uids = {unpack(ARGV, FIRST_OWN)}
local is_new = not hand
if is_new then redis.call('HSET', wheel_key, 'hand', digits(math.floor(now_ms / tick_ms))) end

local tick = digits(math.ceil((now_ms + idle_ms) / tick_ms))
local found = read(uids)
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
