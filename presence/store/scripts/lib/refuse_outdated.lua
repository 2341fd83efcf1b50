-- requires: shard
-- provides: refuse_outdated
-- The refusal of scripts that only the node of a generation may call.

-- Returns a refusal if the caller is no longer the node of its generation, otherwise nil. Order as in apply.
local function refuse_outdated()
  local counter = redis.call('HMGET', node_key, 'gen', 'fence')
  local present = count(counter[1])
  if opened_under ~= replication_id then return refuse('history', present) end
  if counter[2] then return refuse('fenced', present) end
  if present ~= generation then return refuse('unknown', present) end
end

