-- requires: effects shard peer_traces record_cache
-- provides: is_indexable restore_index
-- The index of sessions by node: `<node>:sessions` and `traces`, which lead a sweep to the sessions of a node.

-- Whether names are such that a field of the index can be taken apart again.
local function is_indexable(uid, record)
  for device in pairs(record.sessions) do
    if not string.match(uid .. ' ' .. device, '^%S+ %S*$') then return false end
  end
  return true
end

-- Returns what the index should have for records, uid -> record: node id -> fields, and node id -> their values.
local function index_of(of_users)
  local fields, values = {}, {}
  for uid, record in pairs(of_users) do
    for device, session in pairs(is_indexable(uid, record) and record.sessions or {}) do
      local id = session.node
      fields[id], values[id] = fields[id] or {}, values[id] or {}
      table.insert(fields[id], uid .. ' ' .. device)
      table.insert(values[id], string.format('%.0f %s', session.generation, session.session))
    end
  end
  return fields, values
end

-- Restores what the index lacks of records, uid -> record; returns the number of sessions that it lacked. The index says
-- nothing that the records do not say, so this is right at any time, whether a node lives or not. Without it no sweep would
-- ever find these sessions.
local function restore_index(of_users)
  local fields, values = index_of(of_users)
  local n = 0
  for id, names in pairs(fields) do
    for first = 1, #names, VALUES_A_CALL do
      local last, lacking = math.min(first + VALUES_A_CALL - 1, #names), {}
      local found = redis.call('HMGET', sessions_key(id), unpack(names, first, last))
      for i = first, last do
        if found[i - first + 1] ~= values[id][i] then
          lacking[#lacking + 1], lacking[#lacking + 2] = names[i], values[id][i]
        end
      end
      for i = 1, #lacking, VALUES_A_CALL do
        will('HSET', sessions_key(id), unpack(lacking, i, math.min(i + VALUES_A_CALL - 1, #lacking)))
      end
      n = n + #lacking / 2
    end
    if redis.call('HEXISTS', peer_traces_key, id) == 0 then
      local counter = redis.call('HMGET', node_prefix .. id, 'gen', 'complete', 'fence')
      set_peer_trace(id, count(counter[1]), count(counter[2]), counter[3])
    end
  end
  write_peer_traces()
  return n
end

