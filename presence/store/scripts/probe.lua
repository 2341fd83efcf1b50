-- requires: shard
-- The state of one node in one shard. Writes nothing, but fails if writes would: a server that is out of memory, has
-- become a replica or lacks replicas refuses all writes, and ends have to wait as in an outage.
--
-- KEYS and ARGV 1-9: see lib/shard.lua (of ARGV only 1 and 4 are used). ARGV
--   10 the inbox number up to which the node has read
-- Returns [answer, replication id of now]; answer is MessagePack: {fenced, generation, n, last_id, now_ms, traces
--   = the content of `traces`, flat, inbox_n, inbox = JSON texts of the entries after ARGV 10}. Generation and n are 0
--   without a counter. An inbox number below ARGV 10 means that Redis lost the inbox: then all entries are returned.

local inbox_read = tonumber(ARGV[10])

redis.call('SETRANGE', absent_key, 0, '')  -- a write that changes nothing: there is no key, and no text to put there

local counter = redis.call('HMGET', node_key, 'gen', 'n', 'fence', 'inbox', 'inbox_n')
local inbox_n, after = count(counter[5]), inbox_read
if inbox_n < after then after = 0 end

-- A damaged entry counts as absent, as a damaged record does.
local function is_notice(entry)
  return type(entry) == 'table' and type(entry.n) == 'number' and type(entry.type) == 'string' and type(entry.uid) == 'string'
    and type(entry.device) == 'string' and type(entry.session) == 'string' and type(entry.by) == 'string'
    and type(entry.return_allowed) == 'boolean'
end

local unread = {}
if inbox_n > after and counter[4] then
  for _, entry in ipairs(decoded(counter[4])) do
    if is_notice(entry) and entry.n > after then unread[#unread + 1] = cjson.encode(entry) end
  end
end

return answer_with({fenced = counter[3] and true or false, generation = count(counter[1]), n = count(counter[2]),
  last_id = last_id(), now_ms = now_ms, traces = redis.call('HGETALL', peer_traces_key), inbox_n = inbox_n, inbox = unread})
