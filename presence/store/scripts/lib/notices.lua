-- requires: effects shard
-- provides: collect_notices notify
-- Notices to nodes about their sessions.

-- Queues a notice to a node about one of its sessions; see `collect_notices`.
local notices = {}  -- node id -> entries
local function notify(id, entry)
  notices[id] = notices[id] or {}
  table.insert(notices[id], entry)
end

-- Notices are numbered in the inbox of a node, which its probe reads; the control channel only makes them faster.
local INBOX_LIMIT = 50  -- a node that misses more detects it by comparing
local function collect_notices()
  for id, entries in pairs(notices) do
    local key = node_prefix .. id
    local present = redis.call('HMGET', key, 'inbox', 'inbox_n')
    local inbox, number = #entries < INBOX_LIMIT and decoded(present[1]) or {}, count(present[2])
    for i, entry in ipairs(entries) do
      entry.n = number + i
      inbox[#inbox + 1] = entry
      will('PUBLISH', control_prefix .. id, cjson.encode(entry))
    end
    local last = {}
    for i = math.max(1, #inbox - INBOX_LIMIT + 1), #inbox do last[#last + 1] = inbox[i] end
    will('HSET', key, 'inbox', cjson.encode(last), 'inbox_n', string.format('%.0f', number + #entries))
  end
end

