-- Changes a row of the lease table, if it is as the caller has seen it: the mark of a node that leaves, a death
-- certificate, a take-over of a certificate whose sweeper has stopped, or the burial of a node that was swept.
--
-- KEYS: see lease.lua. ARGV
--   1 id of the node concerned
--   2 text of the row as seen; "" where there is none
--   3 text of the row to be; "" buries: no row, and a tombstone instead
--   4 ms for which the tombstone is kept
-- Returns MessagePack: {status}, "ok" or "lost": the row is another by now; of a burial also told, the JSON that
-- the node told of itself last.

local nodes_key, leases_key, stats_key, tombs_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local concerned, seen, wanted = ARGV[1], ARGV[2], ARGV[3]

if (redis.call('HGET', leases_key, concerned) or '') ~= seen then return cmsgpack.pack({status = 'lost'}) end
local stats
if wanted ~= '' then
  redis.call('HSET', leases_key, concerned, wanted)
else
  stats = redis.call('HGET', stats_key, concerned) or ''
  local clock = redis.call('TIME')
  local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.call('HDEL', leases_key, concerned)
  redis.call('ZREM', nodes_key, concerned)
  redis.call('HDEL', stats_key, concerned)
  redis.call('ZREMRANGEBYSCORE', tombs_key, '-inf', string.format('%.0f', now_ms))
  redis.call('ZADD', tombs_key, string.format('%.0f', now_ms + ARGV[4]), concerned)
end
return cmsgpack.pack({status = 'ok', told = stats})
