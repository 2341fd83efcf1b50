-- provides: VALUES_A_CALL digits events_key last_of now_ms reply stream_fact
-- Shared by all scripts of rooms; put before each of them. The first two keys of each are those it needs most; all its keys
-- are in one hash slot.
--
-- The events of users are in *source* shards, by uid; a room is in a *room* shard, by its name. A projector reads the events of
-- a source (read.lua) and sends what they mean for the rooms of each room shard there (project.lua).
--
-- KEYS of a shard, which is a source and a room shard
--   events        stream of users, online: hash of users, meta: see ../lib/shard.lua
--   rooms:state   hash, of the source: runner, until_ms: the active projector, and the end of its lease; epoch: a token, new
--                 with each rebuild; cursor: a checkpoint: each room shard has all events up to it; begun: "1" once there was a
--                 checkpoint in this epoch; rebuild: a token, while a rebuild is wanted or under way; rebuilds: how many there
--                 were; users, differences, ms: of the last one. Of the room shard: walked, dropped: see `walk`
--   room:<room>   hash: uid -> "<id> <letter>" for each member: the event that says so, and the status: - online, a away, b
--                 busy, d dnd, i invisible. " o": id of the entry `occupied`; " i": number of invisible members, if any
--                 (a uid has no space). These keys are computed: not declared in KEYS, but in the same slot by the same tag
--   rooms:sizes   sorted set: room -> number of members; only rooms that have some
--   rooms:sources hash: <source> -> its *position* "<id> <epoch>": the event up to which the rooms of this shard have all events
--                 of that source; members: number of members of all rooms; walk: token of the last comparison wanted, done
--                 when `walked` of rooms:state is equal; unfinished, see ../lib/effects.lua
--   rooms:events  stream: changes of rooms
--   absent        never exists. While a cluster moves a slot key by key, its servers refuse calls with a missing key, so no
--                 script works on half of a shard

local events_key = KEYS[2]
local VALUES_A_CALL = 1000  -- even, and well within the stack limit of unpack

local known_digits = {}  -- of numbers: writing one takes as long as a tenth of a change

local function digits(number)
  local text = known_digits[number]
  if not text then
    text = string.format('%.0f', number)
    known_digits[number] = text
  end
  return text
end

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Returns what XINFO says of a stream under a name; nil if the stream is absent.
local function stream_fact(key, name)
  if redis.call('EXISTS', key) == 0 then return end
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == name then return info[i + 1] or nil end
  end
end

-- Returns the id of the last entry of a stream: not the last id that there was, because an entry may be deleted.
local function last_of(key)
  local entry = stream_fact(key, 'last-entry')
  return entry and entry[1] or '0-0'
end

local function reply(...)
  return cmsgpack.pack({...})
end
