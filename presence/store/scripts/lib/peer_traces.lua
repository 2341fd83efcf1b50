-- requires: effects shard
-- provides: fence peer_traces set_peer_trace write_peer_traces
-- Fences, and the summaries of nodes.

local peer_traces = {}  -- node id -> its summary as this call will write it

-- Sets the summary of a node's hash. `completed_under`: the replication id, if it has just become complete.
local function set_peer_trace(id, present_generation, complete, fenced, completed_under)
  peer_traces[id] = string.format('%.0f %.0f %d %s', present_generation, complete, fenced and 1 or 0, completed_under or '-')
end

-- Fences a node id. One fenced before may have been swept since, so it gets no new trace.
local function fence(id)
  local counter = redis.call('HMGET', node_prefix .. id, 'gen', 'complete', 'fence')
  if counter[3] or fenced_now[id] then return end
  fenced_now[id] = true
  will('HSETNX', node_prefix .. id, 'fence', string.format('%.0f', now_ms))
  set_peer_trace(id, count(counter[1]), count(counter[2]), true)
end

local function write_peer_traces()
  for id, text in pairs(peer_traces) do will('HSET', peer_traces_key, id, text) end
end

