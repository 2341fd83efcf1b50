-- Changes a row of the lease table if it is still as the caller saw it: to mark a leaving node, to declare a node dead,
-- to take over a sweep whose sweeper has stopped, or to remove a swept node.
--
-- KEYS: see lease.lua. ARGV
--   1 id of the node concerned
--   2 text of the row as seen; "" for none
--   3 new text of the row; "" removes it and leaves a tombstone
--   4 ms for which the tombstone is kept
-- Returns MessagePack: {status}, "ok", or "lost" if the row has changed; for a removal also told, the last stats (JSON)
-- of the node.

local nodes_key, leases_key, stats_key, tombs_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local concerned, seen, wanted, tombstone_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if (redis.call('HGET', leases_key, concerned) or '') ~= seen then return cmsgpack.pack({status = 'lost'}) end
local stats
if wanted ~= '' then
  redis.call('HSET', leases_key, concerned, wanted)
else
  stats = redis.call('HGET', stats_key, concerned) or ''
  local clock = redis.call('TIME')
  local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.call('ZADD', tombs_key, string.format('%.0f', now_ms + tombstone_ms), concerned)
  redis.call('ZREMRANGEBYSCORE', tombs_key, '-inf', string.format('%.0f', now_ms))
  redis.call('ZREM', nodes_key, concerned)
  redis.call('HDEL', stats_key, concerned)
  redis.call('HDEL', leases_key, concerned)  -- last: until then the same call may be repeated
end
return cmsgpack.pack({status = 'ok', told = stats})
