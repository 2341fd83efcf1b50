-- Ends what the node's generations before this one still own: sessions that it no longer has, whose end
-- was skipped or lost. One bounded call of several.
--
-- KEYS and ARGV 1-9: see prelude.lua. ARGV
--   10 cursor of HSCAN, "0" first
--   11 how many fields to look at, roughly
--   12 ms by which these sessions were last seen at the latest; 0: not known, then now
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when refused (history,
-- fenced, unknown, as in apply), else {status = "ok", last_id, cursor, retired = number of sessions ended}. Cursor
-- "0": done. Sending a call again changes nothing, since an end compares session, node and generation.

local counter = redis.call('HMGET', node_key, 'gen', 'fence')
local present_generation = tonumber(counter[1] or 0)
if ARGV[3] ~= history then return refuse('history', present_generation) end
if counter[2] then return refuse('fenced', present_generation) end
if present_generation ~= generation then return refuse('unknown', present_generation) end

local latest_ms = tonumber(ARGV[12])
if latest_ms == 0 or latest_ms > now_ms then latest_ms = now_ms end

local function retire(field, uid, device, owned_generation, session)
  local record = read_record(uid)
  local present = record and record.sessions[device]
  if present and present.session == session and present.node == node
      and present.generation == owned_generation then
    local last_seen_ms = math.max(record.since_ms, latest_ms)
    depart(record, uid, device, CODE_NODE_DOWN, 'node_down', digits(math.max(now_ms, last_seen_ms)),
      digits(last_seen_ms))
    return 1
  end
  own(node_key, field, false)
  return 0
end

local scan = redis.call('HSCAN', node_key, ARGV[10], 'COUNT', ARGV[11])
local retired = 0
for i = 1, #scan[2], 2 do
  local uid, device = string.match(scan[2][i], '^(%S+) (%S*)$')
  if uid then
    local owned_generation, session = string.match(scan[2][i + 1], '^(%d+) (.*)$')
    owned_generation = tonumber(owned_generation)
    if owned_generation < generation then
      retired = retired + retire(scan[2][i], uid, device, owned_generation, session)
    end
  end
end
write_back()
return {cmsgpack.pack({status = 'ok', last_id = highest_id, cursor = scan[1], retired = retired}), history}
