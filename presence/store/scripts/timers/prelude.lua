-- What the scripts of one timer share; the store puts this text before each of them.
--
-- KEYS (one hash slot: all carry the timer's tag)
--   1 work    hash: id -> MessagePack [due_ms, attempt, payload, spared]: every event that is known, waiting, handed out
--             or dead. `attempt` 0: not handed out yet; `spared`: attempts that do not count, for whoever had the event
--             gave it back before he began; often left out. (Scripts of others keep there what they like from the
--             fourth value on, if nothing hands their events out.)
--   2 due     of a queue a sorted set: id -> due_ms, of those that wait; of a ring a hash: slots, tick_ms, hand
--   3 leased  sorted set: id -> ms from which it is handed out again: the end of the lease of whoever has it, or of
--             the pause after a retry
--   4 dead    sorted set: id -> ms since when it is a dead letter, handed out no more
--   5 counts  hash: scheduled, refused, cancelled, handed, again, returned, done, dead -> how many ever; and
--             `kind`: ring or expiry, else it is a queue
--   6 absent  never exists. While a cluster moves a slot key by key, its servers refuse a call of which a key is not
--             there, so that no script works on half of a timer
-- ARGV
--   1 "" for a queue; for a ring MessagePack [slots, tick_ms, what the keys of its slots begin with]; for a queue with
--     alarms MessagePack [what their keys begin with]. These keys are computed: not declared in KEYS, but in the same
--     hash slot by the same tag, and guarded by `absent` as the others
--   2... the script's own
-- Returns MessagePack: an array, whose first item is "ok", "full", "kind" with the timer's if the caller's is another, or
-- "ring" with the slots and tick_ms of the timer if the caller's are others.
--
-- An event is in exactly one place: where it waits, in `leased` or in `dead`. Whoever got it names it by id, due_ms and
-- attempt: these three are the fencing token. (The attempt alone would come again with an id that is scheduled anew.)
--
-- The ring. Slot i holds the events of the ticks i, i + slots, i + 2 slots...: a sorted set, id -> lap, tick = lap x
-- slots + i, counted from 1970. Absolute laps need no decrementing: what is not due yet is not touched. An event is of
-- the first tick that begins at or after its due_ms, and `hand` is a tick up to which (with it) all slots are empty: an
-- add behind it moves it back, so nothing has to wait for the hand to come round.
--
-- Alarms. Beside each event of `due` and `leased` stands a volatile key, prefix .. id, that expires at its score: so that
-- Redis tells. They only hasten; what is true is in the sorted sets.
--
-- The clock is TIME of this server and no other. An entry that is not of the form above counts as absent.

local work_key, due_key, leased_key, dead_key, counts_key, absent_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5],
  KEYS[6]

local VALUES_A_CALL = 1000  -- even, and well within what unpack can put on the stack
local READ_AHEAD = 32       -- entries read at once: of the largest, 2 MiB
local BYTES_A_CALL = 1048576  -- of payload that a call answers with; one more may exceed it
local SLOTS_A_CALL = 512    -- of a ring, that a call looks at: below 1 ms

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local from_ms = now_ms + (clock[2] % 1000 > 0 and 1 or 0)  -- where a delay begins: rounded up, so that none is cut short

local ring    -- {slots, tick_ms, prefix, hand}; nil: a queue
local alarms  -- what the keys of alarms begin with; nil: there are none
local layout = ARGV[1] ~= '' and cmsgpack.unpack(ARGV[1]) or {}
if #layout == 1 then alarms = layout[1] end
if #layout > 1 then ring = {slots = layout[1], tick_ms = layout[2], prefix = layout[3]} end

-- A name is of one kind: what one kind lets wait, another would never look for.
local kind = ring and 'ring' or alarms and 'expiry' or 'queue'
local known_kind = redis.call('HGET', counts_key, 'kind')
if not known_kind and kind ~= 'queue' and redis.call('HLEN', work_key) > 0 then known_kind = 'queue' end
if known_kind and known_kind ~= kind then return cmsgpack.pack({'kind', known_kind}) end

if ring then
  local found = redis.call('HMGET', due_key, 'slots', 'tick_ms', 'hand')
  if found[1] and (tonumber(found[1]) ~= ring.slots or tonumber(found[2]) ~= ring.tick_ms) then
    return cmsgpack.pack({'ring', tonumber(found[1]), tonumber(found[2])})
  end
  ring.is_new = not found[1]
  ring.stored_hand = tonumber(found[3] or '')
  ring.hand = ring.stored_hand or math.floor(now_ms / ring.tick_ms)
end

-- Returns an entry of `work` as a table; nil: there is none.
local function entry_of(packed)
  local ok, entry = pcall(cmsgpack.unpack, packed or '')
  if ok and type(entry) == 'table' and type(entry[1]) == 'number' and type(entry[2]) == 'number'
      and type(entry[3]) == 'string' then
    return entry
  end
end

local SPARED = 4  -- of an entry

local function spared(entry)
  return type(entry[SPARED]) == 'number' and entry[SPARED] or 0
end

local function read(id)
  return entry_of(redis.call('HGET', work_key, id))
end

-- What this call will have written when it ends (`write_back`): one command of Redis takes a few hundred members at the
-- price of a handful.
local kept = {}       -- flat: id, packed entry
local forgotten = {}  -- ids
local added = {}      -- key of a sorted set -> flat: score, id
local removed = {}    -- key of a sorted set -> ids
local counted = {}    -- field of `counts` -> how many more

local function keep(id, entry)
  kept[#kept + 1] = id
  kept[#kept + 1] = cmsgpack.pack(entry)
end

local function forget(id)
  forgotten[#forgotten + 1] = id
end

local function add(key, score, id)
  local list = added[key]
  if not list then
    list = {}
    added[key] = list
  end
  list[#list + 1] = score
  list[#list + 1] = id
end

local function remove(key, id)
  local list = removed[key]
  if not list then
    list = {}
    removed[key] = list
  end
  list[#list + 1] = id
end

local function count(field, n)
  if n > 0 then counted[field] = (counted[field] or 0) + n end
end

-- Returns the key and the score under which an event waits.
local function place_of(due_ms)
  if not ring then return due_key, due_ms end
  local tick = math.ceil(due_ms / ring.tick_ms)
  return ring.prefix .. tick % ring.slots, math.floor(tick / ring.slots), tick
end

-- Lets an event wait for its time.
local function place(id, due_ms)
  local key, score, tick = place_of(due_ms)
  add(key, score, id)
  if tick and tick <= ring.hand then ring.hand = tick - 1 end
end

-- Takes an event out of where it waits, if it does.
local function unplace(id, due_ms)
  local key = place_of(due_ms)
  remove(key, id)
end

-- Makes a dead letter of it.
local function bury(id)
  remove(leased_key, id)
  add(dead_key, now_ms, id)
  count('dead', 1)
end

-- The entry, if it is still the caller's to say what becomes of it; `is_leased`: its score in `leased`, or false.
local function if_present(packed, is_leased, due_ms, attempt)
  local entry = is_leased and entry_of(packed)
  if entry and entry[1] == due_ms and entry[2] == attempt and attempt > 0 then return entry end
end

-- Hands out events. Counts those that it only buries or drops, too, so that a call stays bounded.
local handed = {}        -- flat: id, due_ms, attempt, payload
local handed_bytes = 0
local looked_at = 0

-- Takes ids in order, whose time has come; `source`: the sorted set that all of them are in, or a table with that of
-- each. False: not all of them, for the answer is large enough.
local function hand_out(source, ids, lease_ms, attempts_max)
  for first = 1, #ids, READ_AHEAD do
    local last = math.min(first + READ_AHEAD - 1, #ids)
    local found = redis.call('HMGET', work_key, unpack(ids, first, last))
    for i = first, last do
      if handed_bytes >= BYTES_A_CALL then return false end
      local id, entry = ids[i], entry_of(found[i - first + 1])
      local key = type(source) == 'table' and source[i] or source
      looked_at = looked_at + 1
      if entry and entry[2] - spared(entry) < attempts_max then
        entry[2] = entry[2] + 1
        keep(id, entry)
        add(leased_key, now_ms + lease_ms, id)
        if key ~= leased_key then remove(key, id) end
        count(entry[2] == 1 and 'handed' or 'again', 1)
        local n = #handed
        handed[n + 1], handed[n + 2], handed[n + 3], handed[n + 4] = id, entry[1], entry[2], entry[3]
        handed_bytes = handed_bytes + #entry[3]
      elseif entry then
        if key ~= leased_key then remove(key, id) end
        bury(id)
      else
        remove(key, id)
        forget(id)
      end
    end
  end
  return true
end

-- A script that has written is not refused for want of memory. For those that hand out and settle: they free some.
local function need_no_memory()
  redis.call('DEL', absent_key)
end

local function in_slices(command, key, values)
  for first = 1, #values, VALUES_A_CALL do
    redis.call(command, key, unpack(values, first, math.min(first + VALUES_A_CALL - 1, #values)))
  end
end

-- Sets the alarms of events that have a time now, and removes those of events that have none any more.
local function set_alarms()
  local is_set = {}
  for _, key in ipairs({due_key, leased_key}) do
    local values = added[key] or {}
    for i = 1, #values, 2 do
      is_set[values[i + 1]] = true
      -- A key whose time has passed would not be set at all, and would tell nothing.
      redis.call('SET', alarms .. values[i + 1], '', 'PXAT', string.format('%.0f', math.max(values[i], now_ms + 1)))
    end
  end
  for _, key in ipairs({due_key, leased_key}) do
    for _, id in ipairs(removed[key] or {}) do
      if not is_set[id] then redis.call('UNLINK', alarms .. id) end
    end
  end
end

-- The last thing that a call does. Adds come first: whatever should stop it midway, an event is rather in two places
-- than in none.
local function write_back()
  in_slices('HSET', work_key, kept)
  for key, values in pairs(added) do in_slices('ZADD', key, values) end
  for key, ids in pairs(removed) do in_slices('ZREM', key, ids) end
  in_slices('HDEL', work_key, forgotten)
  if alarms then set_alarms() end
  for field, n in pairs(counted) do redis.call('HINCRBY', counts_key, field, n) end
  if not known_kind and kind ~= 'queue' then redis.call('HSET', counts_key, 'kind', kind) end
  if ring and ring.is_new then redis.call('HSET', due_key, 'slots', ring.slots, 'tick_ms', ring.tick_ms) end
  if ring and ring.hand ~= ring.stored_hand then redis.call('HSET', due_key, 'hand', ring.hand) end
end
