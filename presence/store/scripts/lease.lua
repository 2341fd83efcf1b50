-- Renews a node's lease and returns the table of all leases.
--
-- KEYS (one hash slot, another than any shard's)
--   1 nodes    sorted set: node id -> ms of this server's clock at which its lease expires; to be shown, never
--              a reason to act: nodes observe the counter, by their own clocks
--   2 leases   hash: node id -> "<counter>"; "<counter> left <ms>" once it has drained and ended; "<counter>
--              <sweeper> <n>" once it is declared dead
--   3 stats    hash: node id -> JSON, the stats of the node
--   4 tombs    sorted set: id of a node that was swept -> ms at which the tombstone is removed
-- ARGV
--   1 node id   2 counter, higher with each renewal   3 lease, ms   4 stats
--   5 MessagePack: the dead nodes that the caller sweeps: their n is advanced
-- Returns MessagePack: {status = "dead"} if the id has left, was declared dead or swept, else {status = "ok", now_ms,
-- entered = whether the id had no row before, rows = [[node, text of the row, lease's end in ms]...]}.

local nodes_key, leases_key, stats_key, tombs_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local node, counter, lease_ms, stats, swept = ARGV[1], ARGV[2], ARGV[3], ARGV[4], cmsgpack.unpack(ARGV[5])
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local row = redis.call('HGET', leases_key, node)
if redis.call('ZSCORE', tombs_key, node) or (row and string.find(row, ' ', 1, true)) then
  return cmsgpack.pack({status = 'dead'})
end

-- The rows are written last, and together: until then the same call may be repeated.
local function renew()
  local rows = {node, counter}
  for _, dead in ipairs(swept) do
    local last_counter, sweeper, n = string.match(redis.call('HGET', leases_key, dead) or '', '^(%d+) (%S+) (%d+)$')
    if sweeper == node then
      rows[#rows + 1], rows[#rows + 2] = dead, last_counter .. ' ' .. sweeper .. ' ' .. string.format('%.0f', n + 1)
    end
  end
  redis.call('ZADD', nodes_key, string.format('%.0f', now_ms + lease_ms), node)
  redis.call('HSET', stats_key, node, stats)
  redis.call('HSET', leases_key, unpack(rows))
end

-- A renewal executed after a later one, perhaps long after its node has died, is no sign of life.
if tonumber(counter) > (tonumber(row or '') or -1) then renew() end

local ends = {}
local scored = redis.call('ZRANGE', nodes_key, 0, -1, 'WITHSCORES')
for i = 1, #scored, 2 do ends[scored[i]] = tonumber(scored[i + 1]) end
local rows = {}
local all = redis.call('HGETALL', leases_key)
for i = 1, #all, 2 do rows[#rows + 1] = {all[i], all[i + 1], ends[all[i]] or 0} end
return cmsgpack.pack({status = 'ok', now_ms = now_ms, entered = not row, rows = rows})
