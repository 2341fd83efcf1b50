-- provides: ARMED BASE_ID BYTES CODE DELAY DUE NAME OFFLINE_ID OFFLINE_MS PAYLOAD REASON SEEN UID add_followup added_bytes
-- provides: delete_followup delete_followups digits events_key followup_bytes followups_key ids_of is_after is_changed
-- provides: memory_of ms_of online_key read_followup read_ids_ahead recounts seen_key set_due state_key stream_info
-- provides: write_followups
-- Shared by all scripts of follow-ups; put before each of them, after timers/prelude.lua.
--
-- The follow-ups of a shard are a queue as in timers/prelude.lua, but its events are not handed out: a due follow-up goes
-- into a stream. All keys are in the shard's hash slot, so a script sees users and their follow-ups at one moment.
--
-- KEYS
--   1-6 as in timers/prelude.lua: work, due, leased, dead, counts, absent (leased and dead stay empty). An entry of
--             `work` has more than three values, see below. `due` also has the armed follow-ups, at +inf: their user is
--             online, and the next offline event gives them a due time. `counts` also has: dropped, holes
--   7 of         hash: uid -> MessagePack [id...]: the follow-ups of a user, oldest first
--   8 state      hash: see plan_and_deliver.lua
--   9 events, 10 online, 11 seen: those of the shard, see ../lib/shard.lua
--   12 followups stream: due follow-ups; fields v, id, name, uid, reason, code, offline_id, offline_at_ms, last_seen_ms,
--             due_ms, at_ms, payload ("" or 0 if unknown)
-- ARGV
--   1 "" (timers/prelude.lua)   2... the script's own
--
-- The id of a follow-up of a rule is "<rule>:<uid>:<last_seen_ms of the offline event>", however the scheduler learned
-- that the user went offline. `base_id` is the last entry of the event stream when the follow-up was created: entries up
-- to it were known then, and neither cancel the follow-up nor make it due.

local ids_key, state_key, events_key, online_key, seen_key, followups_key = KEYS[7], KEYS[8], KEYS[9], KEYS[10],
  KEYS[11], KEYS[12]

-- Indices in an entry of `work`: due_ms (0: armed), attempt (0), payload, and those of follow-ups.
local DUE, PAYLOAD, UID, NAME, DELAY, BASE_ID = 1, 3, 4, 5, 6, 7
local REASON, CODE, OFFLINE_ID, OFFLINE_MS, SEEN = 8, 9, 10, 11, 12
local BYTES = 13  -- memory of the follow-up as it is counted in `bytes` of `state`; nil: it is not counted, an older server wrote it
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

-- Returns facts about the event stream: its last id, its first entry (nil if it is empty), its length, and the number of
-- entries ever added (nil before Redis 7).
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

-- What this call has read and changed, to be written at its end (`write_followups`). Until then reads use these tables,
-- because a follow-up may be deleted and created again in one call.
local followups = {}        -- id -> entry of `work`; false: none
local is_changed = {}       -- id -> true: to be written
local ids_by_uid = {}       -- uid -> ids
local has_changed_ids = {}  -- uid -> true: the ids are to be written

local function unpack_ids(uid, packed)
  local ok, ids = pcall(cmsgpack.unpack, packed or '')
  ids_by_uid[uid] = ok and type(ids) == 'table' and ids or {}
end

local function ids_of(uid)
  if not ids_by_uid[uid] then unpack_ids(uid, redis.call('HGET', ids_key, uid)) end
  return ids_by_uid[uid]
end

-- Reads the ids of several users; fewer than VALUES_A_CALL.
local function read_ids_ahead(uids)
  local found = #uids > 0 and redis.call('HMGET', ids_key, unpack(uids)) or {}
  for i, uid in ipairs(uids) do unpack_ids(uid, found[i]) end
end

local TYPES = {[UID] = 'string', [NAME] = 'string', [DELAY] = 'number', [BASE_ID] = 'string', [REASON] = 'string',
  [CODE] = 'number', [OFFLINE_ID] = 'string', [OFFLINE_MS] = 'number', [SEEN] = 'number'}

local function is_followup(entry)
  for i, wanted in pairs(TYPES) do
    if type(entry[i]) ~= wanted then return false end
  end
  return string.find(entry[BASE_ID], '^%d+%-%d+$') ~= nil
end

-- Returns the entry of a follow-up; false if it is absent or damaged.
local function read_followup(id)
  if followups[id] == nil then
    local followup = read_entry(id)
    followups[id] = followup and is_followup(followup) and followup or false
  end
  return followups[id]
end

local added_bytes = 0  -- by this call, of follow-ups that it created and deleted

-- Returns roughly the memory of a follow-up: its id is in `work`, `due` and `of`, and the allocator rounds up.
local function memory_of(id, payload)
  return 400 + 4 * #id + math.floor(#payload * 1.25)
end

-- Returns the memory of all follow-ups of the shard.
local function followup_bytes()
  if redis.call('HLEN', work_key) == 0 then return added_bytes end  -- whatever a damaged entry has left behind
  return math.max(0, (whole(redis.call('HGET', state_key, 'bytes')) or 0) + added_bytes)
end

-- Returns how often the memory was corrected.
local function recounts()
  return whole(redis.call('HGET', state_key, 'recounts')) or 0
end

local function set_due(id, followup, due_ms)
  followup[DUE] = due_ms
  if type(followup[BYTES]) ~= 'number' then
    followup[BYTES] = memory_of(id, followup[PAYLOAD])
    added_bytes = added_bytes + followup[BYTES]
  end
  followups[id] = followup
  is_changed[id] = true
end

local function delete_followup(id)
  local followup = read_followup(id)
  if followup and type(followup[BYTES]) == 'number' then added_bytes = added_bytes - followup[BYTES] end
  followups[id] = false
  is_changed[id] = true
end

local function add_followup(id, followup)
  local uid = followup[UID]
  table.insert(ids_of(uid), id)
  has_changed_ids[uid] = true
  set_due(id, followup, followup[DUE])
end

-- Deletes the follow-ups of a user for which `is_to_go(id, followup)` is true, and damaged ones; returns their number.
local function delete_followups(uid, is_to_go)
  local left, n = {}, 0
  for _, id in ipairs(ids_of(uid)) do
    local followup = read_followup(id)
    if followup and not is_to_go(id, followup) then
      left[#left + 1] = id
    else
      delete_followup(id)
      n = n + 1
    end
  end
  if n > 0 then
    ids_by_uid[uid] = left
    has_changed_ids[uid] = true
  end
  return n
end

-- Writes the changes of a call, all of which it has computed by then.
local function write_followups()
  if added_bytes ~= 0 then will('HSET', state_key, 'bytes', digits(followup_bytes())) end
  for id in pairs(is_changed) do
    local followup = followups[id]
    if followup then
      store_entry(id, followup)
      add_member(due_key, followup[DUE] == ARMED and '+inf' or followup[DUE], id)
    else
      remove_member(due_key, id)
      delete_entry(id)
    end
  end
  local present, absent = {}, {}
  for uid in pairs(has_changed_ids) do
    if #ids_by_uid[uid] > 0 then
      present[#present + 1] = uid
      present[#present + 1] = cmsgpack.pack(ids_by_uid[uid])
    else
      absent[#absent + 1] = uid
    end
  end
  will_in_slices('HSET', ids_key, present)
  will_in_slices('HDEL', ids_key, absent)
  collect_writes()
  raise(carry_out(state_key, {}))
end

raise(finish_former(state_key))
