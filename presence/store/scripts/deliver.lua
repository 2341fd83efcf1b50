-- requires: shard record_cache
-- Sends messages to the nodes that have their recipients, over the control channels of these nodes. Writes nothing.
--
-- KEYS and ARGV 1-9: see lib/shard.lua (of ARGV only 4 and 7 are used). ARGV
--   10 the calling node's id: it delivers to its own sessions itself
--   11 "1" in a cluster, whose servers do not know the subscribers of each other
--   12 messages, MessagePack: one flat array, of uid and frame for each, in order. A caller that is no node has
--      {frame, token, number} in place of a frame, and its node id is empty: nodes report under token and number what
--      became of the message. A fourth element is the only device that gets it
--   13 MessagePack: {uid = {device = ms since its login}} of the caller's sessions of recipients. A login later than
--      the one in the record is still on its way here: that device is the caller's only
-- A user who is invisible gets messages of callers that are no nodes only.
-- Returns [answer, replication id of now]; answer is MessagePack: one flat array, of two values for each message: the
-- number of devices of other nodes it was sent to, and all devices that the record has there, as an array. Both leave
-- out fenced nodes, whose sessions are about to be swept. The number is false of a
-- message that was not sent, because the records of all recipients are too large together: all of one recipient are or none.
--
-- Each node gets one packed message, whose first byte distinguishes it from JSON. It is MessagePack: one flat array, of
-- uid, devices (an array) and frame for each message.

local own_id, is_cluster = ARGV[10], ARGV[11] == '1'
local messages, here = cmsgpack.unpack(ARGV[12]), cmsgpack.unpack(ARGV[13])

local fenced = {}
local function is_fenced_cached(id)
  if fenced[id] == nil then fenced[id] = is_fenced(id) end
  return fenced[id]
end

local targets = {[false] = {}}  -- recipient -> {{node id, devices}...} on other nodes; false: one who is left out
local devices = {[false] = false}  -- recipient -> all of these devices; false: the caller is not to know of any
local function find_targets(recipient, uid, only)
  local by_node, found, all = {}, {}, {}
  local record, ages_ms = read_record(uid), here[uid] or {}
  for device, present in pairs(record and record.sessions or {}) do
    local is_own = present.node == own_id or (ages_ms[device] and now_ms - ages_ms[device] > present.login_ms)
    if not is_own and (not only or device == only) and not is_fenced_cached(present.node) then
      local target = by_node[present.node]
      if not target then
        target = {present.node, {}}
        by_node[present.node], found[#found + 1] = target, target
      end
      target[2][#target[2] + 1], all[#all + 1] = device, device
    end
  end
  local is_hidden = own_id ~= '' and record and record.public
  if own_id ~= '' and not record and next(ages_ms) then  -- their login is on its way, and they may have left invisible
    is_hidden = string.find(redis.call('HGET', left_key, uid) or '', ' %+i')
  end
  targets[recipient], devices[recipient] = is_hidden and {} or found, not is_hidden and all
end

local uids, n, is_served = {}, 0, {}  -- recipients, each once; those whom this call does not leave out
for i = 1, #messages, 2 do
  local uid = messages[i]
  if not is_served[uid] then
    n = n + 1
    uids[n], is_served[uid] = uid, true
  end
end
for i = read_ahead(uids) + 1, n do is_served[uids[i]] = nil end

local recipients = {}  -- of each message: the uid, or uid and device, of which neither has a space; or false
local per_node = {}  -- node id -> its packed message
for i = 1, #messages, 2 do
  local uid, recipient = messages[i], messages[i]
  local only = type(messages[i + 1]) == 'table' and messages[i + 1][4]
  if only then recipient = uid .. ' ' .. only end
  if not is_served[uid] then
    recipient = false
  elseif not targets[recipient] then
    find_targets(recipient, uid, only)
  end
  recipients[#recipients + 1] = recipient
  for _, target in ipairs(targets[recipient]) do
    local packed = per_node[target[1]]
    if not packed then
      packed = {}
      per_node[target[1]] = packed
    end
    local n = #packed
    packed[n + 1], packed[n + 2], packed[n + 3] = uid, target[2], messages[i + 1]
  end
end

for id, packed in pairs(per_node) do per_node[id] = cmsgpack.pack(packed) end

-- A failed call means that nothing was sent, so that the sender may try again. So a node that cannot be published to is one
-- that was not reached, unless that is so for all.
local was_received, is_sent, problem = {}, false, nil
for id, packed in pairs(per_node) do
  local listeners = redis.pcall('PUBLISH', control_prefix .. id, packed)
  if type(listeners) == 'number' then
    was_received[id], is_sent = listeners > 0 or is_cluster, true
  else
    problem = listeners
  end
end
if problem and not is_sent then return problem end

local answer = {}
for i, recipient in ipairs(recipients) do
  local handed = recipient and 0
  for _, target in ipairs(targets[recipient]) do
    if was_received[target[1]] then handed = handed + #target[2] end
  end
  answer[2 * i - 1], answer[2 * i] = handed, devices[recipient]
end
return answer_with(answer)
