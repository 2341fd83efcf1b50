-- Changes rosters: the lists of users whom a user's clients watch.
--
-- KEYS
--   1 rosters  hash: uid -> the uids of the user's roster, in the order of their bytes, with a space between two; "" is
--              an empty roster; and " bytes", the memory that all these take, about
-- ARGV
--   1 channel  told whose rosters have changed: MessagePack, uids
--   2 the most users in a roster
--   3 the most bytes of all rosters of the shard
--   4 MessagePack, changes in order: [uid, 1 to begin with an empty roster, else 0, uids to remove, uids to add]...
--   5 MessagePack, uids whose rosters are to be erased
-- Returns MessagePack: for each change the number of users in the roster; -1: unchanged, they would be too many;
-- -2: unchanged, there is no room. A change that makes rosters smaller is never refused for room.

local ROSTER_BYTES = 100  -- of an entry of the hash beside its texts
local rosters_key, channel = KEYS[1], ARGV[1]
local most_users, most_bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
local changes, erased = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])

local before_bytes = tonumber(redis.call('HGET', rosters_key, ' bytes') or '') or 0
local bytes, counts = before_bytes, {}
local changed, is_changed = {}, {}  -- uids, in order, and as a set
local texts = {}  -- as they are after the changes so far; false: there is none

local function text_of(uid)
  if texts[uid] == nil then texts[uid] = redis.call('HGET', rosters_key, uid) end
  return texts[uid]
end

local function size_of(uid, text) return text and ROSTER_BYTES + #uid + #text or 0 end

local function set(uid, text, old)
  if text == old then return end
  bytes = bytes + size_of(uid, text) - size_of(uid, old)
  texts[uid] = text
  if not is_changed[uid] then
    changed[#changed + 1], is_changed[uid] = uid, true
  end
end

for i, change in ipairs(changes) do
  local uid, is_new, removed, added = unpack(change)
  local old, members = text_of(uid), {}
  if is_new == 0 and old then
    for member in string.gmatch(old, '[^ ]+') do members[member] = true end
  end
  for _, member in ipairs(removed) do members[member] = nil end
  for _, member in ipairs(added) do members[member] = true end
  local list = {}
  for member in pairs(members) do list[#list + 1] = member end
  table.sort(list)
  local text = table.concat(list, ' ')
  local growth = size_of(uid, text) - size_of(uid, old)
  if #list > most_users then
    counts[i] = -1
  elseif growth > 0 and bytes + growth > most_bytes then
    counts[i] = -2
  else
    counts[i] = #list
    set(uid, text, old)
  end
end
for _, uid in ipairs(erased) do set(uid, false, text_of(uid)) end

local fields, gone = {}, {}
for _, uid in ipairs(changed) do
  if texts[uid] then
    fields[#fields + 1], fields[#fields + 2] = uid, texts[uid]
  else
    gone[#gone + 1] = uid
  end
end
if #changed > 0 then
  -- First, because a repeated call finds the writes of a call that was cut short done, and so tells nobody. If a write is
  -- refused, nodes read in vain.
  redis.call('PUBLISH', channel, cmsgpack.pack(changed))
  -- Memory is checked at the first write only. What makes rosters smaller needs none; this one changes nothing.
  if bytes <= before_bytes then redis.call('HDEL', rosters_key, '') end
  if bytes > 0 then
    fields[#fields + 1], fields[#fields + 2] = ' bytes', string.format('%.0f', bytes)
  else
    gone[#gone + 1] = ' bytes'
  end
  if #fields > 0 then redis.call('HSET', rosters_key, unpack(fields)) end
  if #gone > 0 then redis.call('HDEL', rosters_key, unpack(gone)) end
end
return cmsgpack.pack(counts)
