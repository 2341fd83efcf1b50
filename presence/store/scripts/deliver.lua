-- requires: shard records
-- Hands letters to the nodes that have their recipients, over these nodes' control channels. Writes nothing.
--
-- KEYS and ARGV 1-9: see lib/shard.lua (of ARGV only 4 and 7 are looked at). ARGV
--   10 the calling node's id: what its own sessions get it hands to them itself
--   11 "1" in a cluster, whose servers know nothing of each other's subscribers
--   12 letters, MessagePack: one flat array, of uid and frame for each, in order
--   13 MessagePack: {uid = {device = ms since its login}} of sessions that the calling node has of recipients. A login
--      that is later than that in the record is still on its way here: the device is the caller's, nobody else's
-- Returns [answer, replication id of now]; answer is MessagePack: one flat array, of two values for each letter: on how
-- many devices of other nodes it was handed, and all devices that the record names there, as an array. Left out are those
-- of fenced nodes, whose sessions are about to be swept.
--
-- Each node gets one message: its first byte tells it from JSON. It is MessagePack: one flat array, of uid, devices (an
-- array) and frame for each letter.

local own_id, is_cluster = ARGV[10], ARGV[11] == '1'
local letters, here = cmsgpack.unpack(ARGV[12]), cmsgpack.unpack(ARGV[13])

local fenced = {}
local function is_given_up(id)
  if fenced[id] == nil then fenced[id] = is_fenced(id) end
  return fenced[id]
end

local places = {}  -- uid -> {{node id, devices}...} on other nodes
local devices = {}  -- uid -> all of these devices
local function find(uid)
  local by_node, found, all = {}, {}, {}
  local record, ages_ms = read_record(uid), here[uid] or {}
  for device, present in pairs(record and record.sessions or {}) do
    local is_own = present.node == own_id or (ages_ms[device] and now_ms - ages_ms[device] > present.login_ms)
    if not is_own and not is_given_up(present.node) then
      local place = by_node[present.node]
      if not place then
        place = {present.node, {}}
        by_node[present.node], found[#found + 1] = place, place
      end
      place[2][#place[2] + 1], all[#all + 1] = device, device
    end
  end
  places[uid], devices[uid] = found, all
end

local uids = {}
for i = 1, #letters, 2 do uids[#uids + 1] = letters[i] end
read_ahead(uids)

local parcels = {}  -- node id -> what it gets
for i = 1, #letters, 2 do
  local uid = letters[i]
  if not places[uid] then find(uid) end
  for _, place in ipairs(places[uid]) do
    local parcel = parcels[place[1]]
    if not parcel then
      parcel = {}
      parcels[place[1]] = parcel
    end
    local n = #parcel
    parcel[n + 1], parcel[n + 2], parcel[n + 3] = uid, place[2], letters[i + 1]
  end
end

local is_heard = {}
for id, parcel in pairs(parcels) do
  is_heard[id] = redis.call('PUBLISH', ARGV[7] .. id, cmsgpack.pack(parcel)) > 0 or is_cluster
end

local answer = {}
for i, uid in ipairs(uids) do
  local handed = 0
  for _, place in ipairs(places[uid]) do
    if is_heard[place[1]] then handed = handed + #place[2] end
  end
  answer[2 * i - 1], answer[2 * i] = handed, devices[uid]
end
return {cmsgpack.pack(answer), history}
