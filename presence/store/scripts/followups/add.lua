-- Adds a follow-up for one user.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id   3 uid   4 name   5 after, ms   6 payload
--   7 follow-ups that there may be   8 of one user
-- Returns MessagePack: ["ok", whether it was added, due_ms; 0: armed], or ["full", how many there are]. An id that
-- is known is left as it is, so the same call may come again.
--
-- If the user is offline, its time counts from now; if he is online, it is armed: it counts from his next offline
-- event.

local id, uid = ARGV[2], ARGV[3]
local item = item_of(id)
if item then return cmsgpack.pack({'ok', 0, item[DUE]}) end
local held = redis.call('HLEN', work_key)
if held >= tonumber(ARGV[7]) or #ids_of(uid) >= tonumber(ARGV[8]) then
  count('refused', 1)
  write_all()
  return cmsgpack.pack({'full', held >= tonumber(ARGV[7]) and held or #ids_of(uid)})
end
local after_ms = tonumber(ARGV[5])
local is_online = redis.call('HEXISTS', online_key, uid) == 1
local seen = not is_online and redis.call('ZSCORE', seen_key, uid)
local due_ms = is_online and ARMED or from_ms + after_ms
enter(id, {due_ms, 0, ARGV[6], uid, ARGV[4], after_ms, stream_info().last, '', 0, '', 0, tonumber(seen or '0')})
count('scheduled', 1)
write_all()
return cmsgpack.pack({'ok', 1, due_ms})
