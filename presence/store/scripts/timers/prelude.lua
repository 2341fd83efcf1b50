-- provides: BYTES_A_CALL GIVEN_BACK READ_AHEAD SLOTS_A_CALL add_count add_member add_to_index allow_without_memory begin
-- provides: claimed_entry collect_writes commit counts_key cursor_of dead_key delete_entry due_key examined given_back
-- provides: hand_out hand_out_again handed_out index_of leased_key make_dead_letter note_claim now_ceil_ms now_ms
-- provides: read_entry read_index remove_from_index remove_member ring store_entry unpack_entry whole will_in_slices
-- provides: work_key
-- Shared by all scripts of one timer; put before each of them.
--
-- KEYS (one hash slot: all carry the timer's tag)
--   1 work    hash: id -> MessagePack [due_ms, attempt, payload, given_back]: all events: waiting, handed out or dead.
--             `attempt`: 0 until the event is handed out; `given_back`: attempts that do not count, because the worker
--             gave the event back before it began; often absent. (Scripts that never hand out events may keep values of
--             their own from the fourth on.)
--   2 due     waiting events. Of a queue a sorted set: id -> due_ms; of a ring a hash: slots, tick_ms, hand
--   3 leased  sorted set: id -> ms from which it may be handed out again: the end of its lease, or of the pause before
--             a retry
--   4 dead    sorted set: id -> ms since when it is a dead letter, no longer handed out
--   5 counts  hash: totals: scheduled, refused, cancelled, handed, again, returned, done, dead; `kind`: ring or
--             expiry; absent: a queue; `walk`: the cursor of a search for events that the index lacks; and
--             `unfinished`, see lib/effects.lua
--   6 absent  never exists. While a cluster moves a slot key by key, its servers refuse calls with a missing key, so no
--             script works on half of a timer
-- ARGV
--   1 "" for a queue; for a ring MessagePack [slots, tick_ms, prefix of the keys of its slots]; for a queue with alarms
--     MessagePack [prefix of the keys of alarms]. These keys are computed: not declared in KEYS, but in the same slot by
--     the same tag, and guarded by `absent` like the others
--   2... the script's own
-- Returns MessagePack: an array that begins with "ok", "full", "kind" (followed by the timer's kind, if the caller's is
-- another), or "ring" (followed by the timer's slots and tick_ms, if the caller's are others).
--
-- An event is in exactly one place: waiting, in `leased` or in `dead`. A worker names an event that it was handed by id,
-- due_ms and attempt: together these are the fencing token. (The attempt alone repeats if an id is scheduled again.)
--
-- The ring. Slot i holds the events of the ticks i, i + slots, i + 2 slots...: a sorted set, id -> lap, where tick = lap
-- x slots + i, counted from 1970. Laps are absolute, so events that are not due are not touched. An event belongs to the
-- first tick that begins at or after its due_ms. `hand` is a tick: the slots of all ticks up to it are empty. An event
-- added behind the hand moves it back, so it need not wait for the next lap. A hand that was lost is put a lap back.
--
-- Alarms. Each event in `due` and `leased` also has a volatile key, prefix .. id, that expires at its score, and Redis
-- notifies listeners of that. Alarms only shorten the delay; the sorted sets are authoritative.
--
-- The only clock is TIME of this server. An entry that is not of the form above counts as absent.

local work_key, due_key, leased_key, dead_key, counts_key, absent_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5],
  KEYS[6]

local VALUES_A_CALL = 1000  -- even, and well within the stack limit of unpack
local READ_AHEAD = 32       -- entries per read: 2 MiB if all are of maximum size
local BYTES_A_CALL = 1048576  -- of payloads in a reply; the last one may exceed it
local SLOTS_A_CALL = 512    -- slots of a ring that a call examines: below 1 ms

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_ceil_ms = now_ms + (clock[2] % 1000 > 0 and 1 or 0)  -- delays count from here, so that none is short

local ring          -- {slots, tick_ms, prefix, hand}; nil: a queue
local alarm_prefix  -- nil: no alarms
local variant = ARGV[1] ~= '' and cmsgpack.unpack(ARGV[1]) or {}
if #variant == 1 then alarm_prefix = variant[1] end
if #variant > 1 then ring = {slots = variant[1], tick_ms = variant[2], prefix = variant[3]} end

-- A timer has one kind: events that wait under one kind would not be found under another.
local kind = ring and 'ring' or alarm_prefix and 'expiry' or 'queue'
local known_kind, unfinished = unpack(redis.call('HMGET', counts_key, 'kind', 'unfinished'))
if not known_kind and kind ~= 'queue' and redis.call('HLEN', work_key) > 0 then known_kind = 'queue' end
if known_kind and known_kind ~= kind then return cmsgpack.pack({'kind', known_kind}) end

-- Returns a stored number; nil if it is absent or damaged.
local function whole(text)
  local found = string.match(text or '', '^%d+$')
  return found and #found <= 15 and tonumber(found) or nil
end

-- Returns the stored cursor of a walk; that of its beginning if it is absent or damaged.
local function cursor_of(text)
  return whole(text) and text or '0'
end

-- Reads the settings and the hand of a ring; returns an answer if the settings are not the caller's.
local function read_ring()
  local found, present = redis.call('HMGET', due_key, 'slots', 'tick_ms', 'hand'), math.floor(now_ms / ring.tick_ms)
  ring.is_new = tonumber(found[1] or '') ~= ring.slots or tonumber(found[2] or '') ~= ring.tick_ms
  if ring.is_new then
    local slots, tick_ms = whole(found[1]), whole(found[2])
    if slots and tick_ms then return cmsgpack.pack({'ring', slots, tick_ms}) end
  end
  ring.stored_hand = tonumber(found[3] or '')
  ring.hand = ring.stored_hand
  -- The hand of a ring with events was lost, or is ahead of the clock: a lap has all slots with events that are due.
  if not ring.hand or ring.hand % 1 ~= 0 or ring.hand > present then
    ring.hand = redis.call('HLEN', work_key) > 0 and present - ring.slots or present
  end
end

local refusal = ring and read_ring()
if refusal then return refusal end

-- Reads what waits under a key; an error names the key, since a caller does not know the slots of a ring.
local function read_index(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' and answer.err then
    raise(redis.error_reply(answer.err .. ' (' .. command .. ' ' .. key .. ')'))
  end
  return answer
end

-- Returns an entry of `work` as a table; nil if it is absent or damaged.
local function unpack_entry(packed)
  local ok, entry = pcall(cmsgpack.unpack, packed or '')
  if ok and type(entry) == 'table' and type(entry[1]) == 'number' and type(entry[2]) == 'number'
      and type(entry[3]) == 'string' then
    return entry
  end
end

local GIVEN_BACK = 4  -- index in an entry

local function given_back(entry)
  return type(entry[GIVEN_BACK]) == 'number' and entry[GIVEN_BACK] or 0
end

local function read_entry(id)
  return unpack_entry(redis.call('HGET', work_key, id))
end

-- What this call will write at its end (`collect_writes`): one command with a few hundred members costs as much as a few
-- small ones.
local stored = {}           -- flat: id, packed entry
local deleted = {}          -- ids
local added_members = {}    -- key of a sorted set -> flat: score, id
local removed_members = {}  -- key of a sorted set -> ids
local added_counts = {}     -- field of `counts` -> number to add

local function store_entry(id, entry)
  stored[#stored + 1] = id
  stored[#stored + 1] = cmsgpack.pack(entry)
end

local function delete_entry(id)
  deleted[#deleted + 1] = id
end

local function add_member(key, score, id)
  local list = added_members[key]
  if not list then
    list = {}
    added_members[key] = list
  end
  list[#list + 1] = score
  list[#list + 1] = id
end

local function remove_member(key, id)
  local list = removed_members[key]
  if not list then
    list = {}
    removed_members[key] = list
  end
  list[#list + 1] = id
end

local function add_count(field, n)
  if n > 0 then added_counts[field] = (added_counts[field] or 0) + n end
end

-- Returns the key and the score under which an event waits, and its tick in a ring.
local function index_of(due_ms)
  if not ring then return due_key, due_ms end
  local tick = math.ceil(due_ms / ring.tick_ms)
  return ring.prefix .. tick % ring.slots, math.floor(tick / ring.slots), tick
end

-- Makes an event wait until it is due.
local function add_to_index(id, due_ms)
  local key, score, tick = index_of(due_ms)
  add_member(key, score, id)
  if tick and tick <= ring.hand then ring.hand = tick - 1 end
end

-- Removes an event from those that wait; does nothing if it does not.
local function remove_from_index(id, due_ms)
  local key = index_of(due_ms)
  remove_member(key, id)
end

local function make_dead_letter(id)
  remove_member(leased_key, id)
  add_member(dead_key, now_ms, id)
  add_count('dead', 1)
end

-- Returns the entry of an event if it still belongs to the caller, otherwise nil. `lease_ms`: its score in `leased`, or
-- false.
local function claimed_entry(packed, lease_ms, due_ms, attempt)
  local entry = lease_ms and unpack_entry(packed)
  if entry and entry[1] == due_ms and entry[2] == attempt and attempt > 0 then return entry end
end

local handed_out = {}  -- flat: id, due_ms, attempt, payload
local handed_out_bytes = 0
local examined = 0  -- events, with those that became dead letters or were dropped: these too count towards a limit

-- Hands out due events in the order of their ids. `source`: the key of the sorted set that has all of them, or a table
-- with the key of each. Returns false if it stopped early because the reply is large.
local function hand_out(source, ids, lease_ms, attempts_max)
  for first = 1, #ids, READ_AHEAD do
    local last = math.min(first + READ_AHEAD - 1, #ids)
    local found = redis.call('HMGET', work_key, unpack(ids, first, last))
    for i = first, last do
      if handed_out_bytes >= BYTES_A_CALL then return false end
      local id, entry = ids[i], unpack_entry(found[i - first + 1])
      local key = type(source) == 'table' and source[i] or source
      examined = examined + 1
      if entry and entry[2] - given_back(entry) < attempts_max then
        entry[2] = entry[2] + 1
        store_entry(id, entry)
        add_member(leased_key, now_ms + lease_ms, id)
        if key ~= leased_key then remove_member(key, id) end
        add_count(entry[2] == 1 and 'handed' or 'again', 1)
        local n = #handed_out
        handed_out[n + 1], handed_out[n + 2], handed_out[n + 3], handed_out[n + 4] = id, entry[1], entry[2], entry[3]
        handed_out_bytes = handed_out_bytes + #entry[3]
      elseif entry then
        if key ~= leased_key then remove_member(key, id) end
        make_dead_letter(id)
      else
        remove_member(key, id)
        delete_entry(id)
      end
    end
  end
  return true
end

-- The answer of a call that hands out events may be lost, and a handler must not lose an attempt by that. So callers number
-- these calls, and repeat a number until it is answered. `claim_key` is a string of the caller's own: MessagePack [number,
-- id, due_ms, attempt, of the next...], what its latest call has handed out.
local CLAIM_KEPT_MS = 60000  -- beyond the lease: the caller may repeat a call after an outage

-- Hands out again what a call of this number has handed out, as the same attempts, as far as it still belongs to the
-- caller; returns whether there was any.
local function hand_out_again(claim_key, number, lease_ms)
  local packed = redis.call('GET', claim_key)
  if not packed then return false end
  local ok, claim = pcall(cmsgpack.unpack, packed)
  if not ok or type(claim) ~= 'table' or claim[1] ~= number then return false end
  for first = 2, #claim, 3 * READ_AHEAD do
    local ids = {}
    for i = first, math.min(first + 3 * READ_AHEAD, #claim + 1) - 1, 3 do ids[#ids + 1] = claim[i] end
    local found = redis.call('HMGET', work_key, unpack(ids))
    local leases = redis.call('ZMSCORE', leased_key, unpack(ids))
    for place, id in ipairs(ids) do
      local i, n = first + 3 * (place - 1), #handed_out
      local entry = claimed_entry(found[place], leases[place], claim[i + 1], claim[i + 2])
      if entry then
        add_member(leased_key, now_ms + lease_ms, id)
        handed_out[n + 1], handed_out[n + 2], handed_out[n + 3], handed_out[n + 4] = id, entry[1], entry[2], entry[3]
      end
    end
  end
  return #handed_out > 0
end

-- Notes what this call hands out, for a repetition.
local function note_claim(claim_key, number, lease_ms)
  if #handed_out == 0 then return end
  local claim = {number}
  for i = 1, #handed_out, 4 do
    local n = #claim
    claim[n + 1], claim[n + 2], claim[n + 3] = handed_out[i], handed_out[i + 1], handed_out[i + 2]
  end
  will('SET', claim_key, cmsgpack.pack(claim), 'PX', string.format('%.0f', lease_ms + CLAIM_KEPT_MS))
end

-- Begins a call that writes: finishes what a former call had to leave.
local function begin()
  if not unfinished then return end
  raise(finish_former(counts_key))
  if ring then read_ring() end
end

-- Lets the script write although Redis is out of memory, because Redis refuses only the first write of a script. For
-- scripts that hand out or finish events, and so free memory.
local is_allowed_without_memory
local function allow_without_memory()
  is_allowed_without_memory = true
end

local function will_in_slices(command, key, values)
  for first = 1, #values, VALUES_A_CALL do
    will(command, key, unpack(values, first, math.min(first + VALUES_A_CALL - 1, #values)))
  end
end

-- Sets the alarms of events that this call added to `due` or `leased`, and removes those of events that it only removed.
local function write_alarms()
  local is_set = {}
  for _, key in ipairs({due_key, leased_key}) do
    local values = added_members[key] or {}
    for i = 1, #values, 2 do
      is_set[values[i + 1]] = true
      -- With a time in the past the key would not be set, and nothing would expire.
      will('SET', alarm_prefix .. values[i + 1], '', 'PXAT',
        string.format('%.0f', math.max(values[i], now_ms + 1)))
    end
  end
  for _, key in ipairs({due_key, leased_key}) do
    for _, id in ipairs(removed_members[key] or {}) do
      if not is_set[id] then will('UNLINK', alarm_prefix .. id) end
    end
  end
end

-- Returns the totals that this call changes, flat: field, number. A damaged one begins anew.
local function new_totals()
  local fields, totals = {}, {}
  for field in pairs(added_counts) do fields[#fields + 1] = field end
  local present = #fields > 0 and redis.call('HMGET', counts_key, unpack(fields)) or {}
  for i, field in ipairs(fields) do
    totals[2 * i - 1] = field
    totals[2 * i] = string.format('%.0f', (whole(present[i]) or 0) + added_counts[field])
  end
  return totals
end

-- Puts the changes of a call in order, to be carried out.
local function collect_writes()
  local totals = new_totals()
  will_in_slices('HSET', work_key, stored)
  for key, values in pairs(added_members) do will_in_slices('ZADD', key, values) end
  for key, ids in pairs(removed_members) do will_in_slices('ZREM', key, ids) end
  will_in_slices('HDEL', work_key, deleted)
  if alarm_prefix then write_alarms() end
  if #totals > 0 then will('HSET', counts_key, unpack(totals)) end
  if not known_kind and kind ~= 'queue' then will('HSET', counts_key, 'kind', kind) end
  if ring and ring.is_new then will('HSET', due_key, 'slots', ring.slots, 'tick_ms', ring.tick_ms) end
  if ring and ring.hand ~= ring.stored_hand then will('HSET', due_key, 'hand', ring.hand) end
end

-- Ends a call that writes: carries out its changes.
local function commit()
  collect_writes()
  if is_allowed_without_memory and effect_count > 0 then redis.call('DEL', absent_key) end
  carry_out_all(counts_key)
end
