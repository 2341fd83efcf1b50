-- What the scripts of follow-ups share; the store puts timers/prelude.lua and this text before each of them.
--
-- The follow-ups of a shard are a queue of timers/prelude.lua whose events nobody is handed: what is due goes into a
-- stream. All its keys are in the shard's hash slot, so a script sees the users and their follow-ups at one moment.
--
-- KEYS
--   1-6 as in timers/prelude.lua: work, due, leased, dead, counts, absent (leased and dead stay empty). An entry of
--             `work` has more values than three, see below. `due` has those that are armed, too, at +inf: their user
--             is online, and his next offline event gives them a time. More in `counts`: dropped, holes
--   7 of      hash: uid -> MessagePack [id...]: his follow-ups, in the order in which they came
--   8 state   hash: see turn.lua
--   9 events, 10 online, 11 seen: the shard's, see ../prelude.lua
--   12 told   stream: the follow-ups that were due; fields v, id, name, uid, reason, code, offline_id, offline_at_ms,
--             last_seen_ms, due_ms, at_ms, payload ("" or 0 where it is not known)
-- ARGV
--   1 "" (timers/prelude.lua)   2... the script's own
--
-- A follow-up of a rule is called "<rule>:<uid>:<last_seen_ms of the offline event>": the same whichever way it is
-- found out that the user went. `place` is the last entry of the stream at the moment at which it was made: what
-- stands in the stream up to there was known then, and neither cancels it nor gives it a time.

local of_key, state_key, events_key, online_key, seen_key, told_key = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11],
  KEYS[12]

-- Of an entry of `work`, after due_ms (0: armed), attempt (0) and payload.
local DUE, PAYLOAD, UID, NAME, AFTER, PLACE = 1, 3, 4, 5, 6, 7
local REASON, CODE, OFFLINE_ID, OFFLINE_MS, SEEN = 8, 9, 10, 11, 12
local ARMED = 0

local function digits(number)
  return string.format('%.0f', number)
end

local function ms_of(entry_id)
  local ms, n = string.match(entry_id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(n)
end

-- Whether an entry id comes after another.
local function is_after(id, other)
  local ms, n = ms_of(id)
  local other_ms, other_n = ms_of(other)
  return ms > other_ms or (ms == other_ms and n > other_n)
end

-- What is known of the stream of events: its last id, its first entry (nil: it is empty), its length, and how many
-- entries it ever had (nil: before Redis 7).
local function stream_info()
  local found = {last = '0-0', length = 0, added = 0}
  if redis.call('EXISTS', events_key) == 0 then return found end
  local info = redis.call('XINFO', 'STREAM', events_key)
  found.added = nil
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then found.last = info[i + 1] end
    if info[i] == 'first-entry' and info[i + 1] then found.first = info[i + 1][1] end
    if info[i] == 'length' then found.length = info[i + 1] end
    if info[i] == 'entries-added' then found.added = info[i + 1] end
  end
  return found
end

-- What this call has read and changed; reads go by these tables, and all is written at the end: an id may go and come
-- again in one call.
local items = {}       -- id -> entry of `work`; false: none
local is_touched = {}  -- id -> true: of these
local ids_by_uid = {}  -- uid -> ids
local is_changed = {}  -- uid -> true: of his ids

local function take_ids(uid, packed)
  local ok, ids = pcall(cmsgpack.unpack, packed or '')
  ids_by_uid[uid] = ok and type(ids) == 'table' and ids or {}
end

local function ids_of(uid)
  if not ids_by_uid[uid] then take_ids(uid, redis.call('HGET', of_key, uid)) end
  return ids_by_uid[uid]
end

-- Reads those of some users at once; fewer than VALUES_A_CALL.
local function read_ids(uids)
  local found = #uids > 0 and redis.call('HMGET', of_key, unpack(uids)) or {}
  for i, uid in ipairs(uids) do take_ids(uid, found[i]) end
end

local function item_of(id)
  if items[id] == nil then
    local item = read(id)
    items[id] = item and type(item[SEEN]) == 'number' and type(item[UID]) == 'string' and item or false
  end
  return items[id]
end

local function due_at(id, item, due_ms)
  item[DUE] = due_ms
  items[id] = item
  is_touched[id] = true
end

local function take_out(id)
  items[id] = false
  is_touched[id] = true
end

local function enter(id, item)
  local uid = item[UID]
  table.insert(ids_of(uid), id)
  is_changed[uid] = true
  due_at(id, item, item[DUE])
end

-- Takes some follow-ups of a user out; `is_to_go` is asked of each. Returns how many.
local function leave(uid, is_to_go)
  local left, n = {}, 0
  for _, id in ipairs(ids_of(uid)) do
    local item = item_of(id)
    if item and not is_to_go(id, item) then
      left[#left + 1] = id
    else
      take_out(id)
      n = n + 1
    end
  end
  if n > 0 then
    ids_by_uid[uid] = left
    is_changed[uid] = true
  end
  return n
end

-- The last thing that a call does.
local function write_all()
  for id in pairs(is_touched) do
    local item = items[id]
    if item then
      keep(id, item)
      add(due_key, item[DUE] == ARMED and '+inf' or item[DUE], id)
    else
      remove(due_key, id)
      forget(id)
    end
  end
  local present, absent = {}, {}
  for uid in pairs(is_changed) do
    if #ids_by_uid[uid] > 0 then
      present[#present + 1] = uid
      present[#present + 1] = cmsgpack.pack(ids_by_uid[uid])
    else
      absent[#absent + 1] = uid
    end
  end
  in_slices('HSET', of_key, present)
  in_slices('HDEL', of_key, absent)
  write_back()
end
