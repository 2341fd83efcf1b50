-- Changes the members of rooms as some events of one source say, or a comparison of members with records.
--
-- KEYS 1 rooms:sources   2 rooms:events   3 rooms:sizes   4 absent
-- ARGV
--   1 source shard   2 position that this call continues, "-": any, "- <epoch>": any of this epoch   3 position after it; with
--     any the same as 2, and nothing is stored
--   4 prefix of the keys of rooms   5 approximate maximum of entries in rooms:events   6 "all": members that join and leave
--     have entries, too; or ""   7 most rooms of this shard; others are refused   8 "", or a token for `walk`
--   9 channel that is told in which rooms other members are, or others invisible: names with a space between two
--   10 kind of the items   11 "", or MessagePack [room, number of values, values..., room...], each room once. The values of a
--     room are its *items*, ITEM values each, in order:
--       "events"    uid, value, at_ms, reason: the user is a member with this value; if it is only an event's id: none
--       "records"   the same by a record, if the user is no member, or with another status: a difference
--       "removals"  uid, value, id, reason: the user is none by a record, which is true after this event, if the value of the
--                   member is still this one: a difference
-- Returns MessagePack ["at", stored position] if it is another one, and nothing is done; or ["ok", members joined, left, rooms
-- occupied, vacated, differences, refused].
--
-- Members, entries and position change in one step, and a position is left only once: so each event is applied once, in the
-- order of its room, no matter who sends it, or how often. Removals guard themselves: later events change the value, unless a
-- rebuild has skipped them, and then the epoch is another one.
--
-- Entries: v, type, room, uid, count (members after it), public (those of them who are not invisible), at_ms, reason,
-- event_id, source. A room that is occupied or vacated has its entry beside that of the member.

local sources_key, sizes_key = KEYS[1], KEYS[3]
local source, from, to, room_prefix, stream_maxlen = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local has_member_events, max_rooms, walk = ARGV[6] == 'all', tonumber(ARGV[7]), ARGV[8]
local room_channel, kind, packed = ARGV[9], ARGV[10], ARGV[11]
local groups = packed ~= '' and cmsgpack.unpack(packed) or {}
local are_events, ITEM = kind == 'events', 4  -- ITEM: values of an item
local OCCUPIED, INVISIBLE = ' o', ' i'
local ZERO, NINE, LETTER_INVISIBLE = 48, 57, 105  -- last bytes of values
local byte = string.byte

raise(finish_former(sources_key))
local known = redis.call('HMGET', sources_key, source, 'members')
local position, members = known[1] or '', tonumber(known[2] or '') or 0
local epoch = string.match(from, '^%-(.*)$')  -- with the space before it; '': any
local fits = position == from
if epoch then fits = epoch == '' or string.sub(position, -#epoch) == epoch end
if not fits then return reply('at', position) end

local joined, left, occupied, vacated, differences, refused = 0, 0, 0, 0, 0, 0
local room_count = #groups > 0 and redis.call('ZCARD', sizes_key) or 0

-- Ids of entries are given here, as Redis would: the room keeps that of `occupied`.
local top_ms, top_n, top_prefix
local function add_entry(type, room, size, invisible, at)
  if not top_ms then
    local ms, n = string.match(stream_fact(events_key, 'last-generated-id') or '0-0', '^(%d+)-(%d+)$')
    top_ms, top_n = tonumber(ms), tonumber(n)
    if top_ms < now_ms then top_ms, top_n = now_ms, -1 end
    top_prefix = digits(top_ms) .. '-'
  end
  top_n = top_n + 1
  local id, event_id, at_ms = top_prefix .. digits(top_n), string.match(groups[at + 1], '^%S+'), groups[at + 2]
  if kind == 'removals' then event_id, at_ms = at_ms, string.match(at_ms, '^%d+') end
  will('XADD', events_key, 'MAXLEN', '~', stream_maxlen, id, 'v', '1', 'type', type, 'room', room,
    'uid', groups[at], 'count', digits(size), 'public', digits(size - invisible),
    'at_ms', at_ms, 'reason', groups[at + 3], 'event_id', event_id, 'source', source)
  return id
end

-- Collects a command with values of a list, in pairs or not.
local function will_in_slices(command, key, values)
  for first = 1, #values, VALUES_A_CALL do
    will(command, key, unpack(values, first, math.min(first + VALUES_A_CALL - 1, #values)))
  end
end

-- Returns what a command that is given a key and names answers for the first `n` of these.
local function read_in_slices(command, key, names, n)
  if n <= VALUES_A_CALL then return redis.call(command, key, unpack(names, 1, n)) end
  local values = {}
  for first = 1, n, VALUES_A_CALL do
    local last = math.min(first + VALUES_A_CALL - 1, n)
    local found = redis.call(command, key, unpack(names, first, last))
    for i = first, last do values[i] = found[i - first + 1] end
  end
  return values
end

-- The numbers of members are those of the index, because each command takes time; but a comparison counts members anew.
local rooms, room_places, at = {}, {}, 1
while at < #groups do
  rooms[#rooms + 1], room_places[#rooms + 1] = groups[at], at
  at = at + 2 + groups[at + 1]
end
local known_sizes = are_events and #rooms > 0 and read_in_slices('ZMSCORE', sizes_key, rooms, #rooms) or {}

local sizes, emptied, news = {}, {}, {}
local removals = {}  -- HDEL, after all HSET
local fields = {INVISIBLE}  -- of the room at hand; a table for each would take a tenth of the time of a change
local after = {}  -- field -> value by this call; false: none

-- Applies the items of a room, which are these values of `groups`: collects what is left of the room, and entries.
local function change(room, known_size, first, last)
  local key, n = room_prefix .. room, 1
  for i = first, last, ITEM do
    n = n + 1
    fields[n] = groups[i]
  end
  local size, found, place = tonumber(known_size or '') or redis.call('HLEN', key), nil, 1
  if size > 0 then
    found = read_in_slices('HMGET', key, fields, n)
    if not known_size then size = size - (found[1] and 1 or 0) - (redis.call('HGET', key, OCCUPIED) and 1 or 0) end
  end
  local invisible = found and tonumber(found[1] or '') or 0
  local size_before, invisible_before, is_changed, is_news = size, invisible, false, false
  for i = first, last, ITEM do
    place = place + 1
    local uid, value = groups[i], groups[i + 1]
    local before = after[uid]
    if before == nil then before = found and found[place] end
    local letter, letter_before = byte(value, -1), before and byte(before, -1)
    local wanted, applies = value, true
    if are_events then
      if letter >= ZERO and letter <= NINE then wanted, applies = false, before end
    elseif kind == 'records' then
      applies = letter_before ~= letter
    else
      wanted, applies = false, before == value
    end
    if applies and not before and size == 0 then
      if room_count < max_rooms then
        room_count, occupied = room_count + 1, occupied + 1
      else
        applies, refused = false, refused + 1
      end
    end
    if applies then
      after[uid], is_changed = wanted, true
      if wanted and letter == LETTER_INVISIBLE then invisible = invisible + 1 end
      if invisible > 0 and letter_before == LETTER_INVISIBLE then invisible = invisible - 1 end
      if not are_events then differences = differences + 1 end
      if not before then
        size, joined, is_news = size + 1, joined + 1, true
        if size == 1 then after[OCCUPIED] = add_entry('occupied', room, size, invisible, i) end
        if has_member_events then add_entry('joined', room, size, invisible, i) end
      elseif not wanted then
        size, left, is_news = size - 1, left + 1, true
        if has_member_events then add_entry('left', room, size, invisible, i) end
        if size == 0 then
          room_count, vacated, after[OCCUPIED] = room_count - 1, vacated + 1, false
          add_entry('vacated', room, size, invisible, i)
        end
      elseif (letter == LETTER_INVISIBLE) ~= (letter_before == LETTER_INVISIBLE) then
        is_news = true
      end
    end
  end
  if not is_changed then return end

  if invisible ~= invisible_before then after[INVISIBLE] = invisible > 0 and digits(invisible) end
  fields[n + 1] = OCCUPIED
  local setting, removing, n_set, n_removed = {'HSET', key}, nil, 2, 2
  for i = 1, n + 1 do
    local field = fields[i]
    local value = after[field]
    if value then
      setting[n_set + 1], setting[n_set + 2], n_set = field, value, n_set + 2
      if n_set > VALUES_A_CALL then
        add_effect(setting)
        setting, n_set = {'HSET', key}, 2
      end
    elseif value == false then
      if not removing or n_removed > VALUES_A_CALL then
        removing, n_removed = {'HDEL', key}, 2
        removals[#removals + 1] = removing
      end
      n_removed = n_removed + 1
      removing[n_removed] = field
    end
    if value ~= nil then after[field] = nil end  -- a uid may be there again
  end
  if n_set > 2 then add_effect(setting) end
  if size == 0 then
    emptied[#emptied + 1] = room
  elseif size ~= size_before then
    sizes[#sizes + 1], sizes[#sizes + 2] = digits(size), room
  end
  if is_news then news[#news + 1] = room end
end

for i, room in ipairs(rooms) do
  local first = room_places[i] + 2
  change(room, known_sizes[i], first, first + groups[first - 1] - 1)
end
for i = 1, #removals do add_effect(removals[i]) end
will_in_slices('ZADD', sizes_key, sizes)
will_in_slices('ZREM', sizes_key, emptied)

local stored = {}
local function store(name, value)
  stored[#stored + 1], stored[#stored + 2] = name, value
end
if to ~= from then store(source, to) end
if joined ~= left then store('members', digits(members + joined - left)) end
if walk ~= '' then store('walk', walk) end
if #news > 0 then will('PUBLISH', room_channel, table.concat(news, ' ')) end
will_in_slices('HSET', sources_key, stored)
carry_out_all(sources_key, room_prefix, {room_channel})
return reply('ok', joined, left, occupied, vacated, differences, refused)
