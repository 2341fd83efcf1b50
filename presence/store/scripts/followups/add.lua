-- Adds a follow-up for one user.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id   3 uid   4 name   5 delay, ms   6 payload
--   7 maximum of follow-ups in the shard   8 of one user   9 maximum of their memory in the shard, bytes
-- Returns MessagePack: ["ok", 1 if it was added, else 0, due_ms (0: armed)], or ["full", number of follow-ups]. A known id
-- is left unchanged, so the call may be repeated.
--
-- If the user is offline, the delay counts from now. If the user is online, the follow-up is armed: the delay counts from
-- the next offline event. If no scheduler has ever run, it begins here (`start`), so that it reads that event.

local id, uid, name, delay_ms, payload = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local max_followups, max_of_user, max_bytes = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

local known = read_followup(id)
if known then return cmsgpack.pack({'ok', 0, known[DUE]}) end
local pending = redis.call('HLEN', work_key)
local is_full = pending >= max_followups or followup_bytes() + memory_of(id, payload) > max_bytes
if is_full or #ids_of(uid) >= max_of_user then
  add_count('refused', 1)
  write_followups()
  return cmsgpack.pack({'full', is_full and pending or #ids_of(uid)})
end
local info = stream_info()
if redis.call('HEXISTS', state_key, 'cursor') == 0 and redis.call('HEXISTS', state_key, 'start') == 0 then
  will('HSET', state_key, 'start', info.last .. ' ' .. (info.added and digits(info.added) or ''))
end
local is_online = redis.call('HEXISTS', online_key, uid) == 1
local seen = not is_online and redis.call('ZSCORE', seen_key, uid)
local due_ms = is_online and ARMED or now_ceil_ms + delay_ms
add_followup(id, {due_ms, 0, payload, uid, name, delay_ms, info.last, '', 0, '', 0, tonumber(seen or '0')})
add_count('scheduled', 1)
write_followups()
return cmsgpack.pack({'ok', 1, due_ms})
