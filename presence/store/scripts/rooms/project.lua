-- Changes the members of rooms as some events of one source say, or a comparison of members with records.
--
-- KEYS 1 rooms:sources   2 rooms:events   3 rooms:sizes   4 absent
-- ARGV
--   1 source shard   2 position that this call continues, "-": any   3 position after it; not stored with "-"
--   4 prefix of the keys of rooms   5 approximate maximum of entries in rooms:events   6 "all": members that join and leave
--     have entries, too; or ""   7 most rooms of this shard; others are refused   8 "", or a token for `walk`
--   9 "", or MessagePack [op, room, uid, id, letter, at_ms, reason...], the *items*:
--       j  the user is a member, with this letter     l  the user is none
--       a  as j, by a record (counts as a difference)
--       d  the user is none, by a record: only if the value of the member is `letter` still (counts as a difference)
-- Returns MessagePack ["at", stored position] if it is another one, and nothing is done; or ["ok", members joined, left, rooms
-- occupied, vacated, differences, refused].
--
-- Members, entries and position change in one step, and a position is left only once: so each event is applied once, in order,
-- no matter who sends it, or how often. What a position does not guard, `d`, guards itself: later events change the value.
--
-- Entries: v, type, room, uid, count (members after it), public (those of them who are not invisible), at_ms, reason,
-- event_id, source. A room that is occupied or vacated has its entry beside that of the member.

local sources_key, sizes_key = KEYS[1], KEYS[3]
local source, from, to, room_prefix, stream_maxlen = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local tells_members, max_rooms, walk = ARGV[6] == 'all', tonumber(ARGV[7]), ARGV[8]
local packed = ARGV[9]
local items = packed ~= '' and cmsgpack.unpack(packed) or {}
local ITEM = 7  -- values of an item
local OCCUPIED, INVISIBLE = ' o', ' i'

raise(finish_former(sources_key))
local known = redis.call('HMGET', sources_key, source, 'members')
local position, members = known[1] or '', tonumber(known[2] or '') or 0
if from ~= '-' and position ~= from then return reply('at', position) end

local joined, left, occupied, vacated, differences, refused = 0, 0, 0, 0, 0, 0
local rooms, names = {}, {}  -- name -> room; the names in order

-- A room as this call leaves it: its values by field (false: none), those that were changed, and its numbers of members.
local function read_room(name, fields)
  local key = room_prefix .. name
  local room = {name = name, key = key, values = {}, changed = {}, size = redis.call('HLEN', key)}
  if room.size > 0 then
    for first = 1, #fields, VALUES_A_CALL do
      local last = math.min(first + VALUES_A_CALL - 1, #fields)
      local found = redis.call('HMGET', key, unpack(fields, first, last))
      for i = first, last do room.values[fields[i]] = found[i - first + 1] end
    end
  end
  room.invisible = tonumber(room.values[INVISIBLE] or '') or 0
  room.invisible_before = room.values[INVISIBLE] or false
  for _, extra in ipairs({OCCUPIED, INVISIBLE}) do
    if room.values[extra] then room.size = room.size - 1 end
  end
  return room
end

local fields_of = {}
for i = 1, #items, ITEM do
  local name, uid = items[i + 1], items[i + 2]
  local fields = fields_of[name]
  if not fields then
    fields = {OCCUPIED, INVISIBLE}
    fields_of[name], names[#names + 1] = fields, name
  end
  fields[#fields + 1] = uid
end
for _, name in ipairs(names) do rooms[name] = read_room(name, fields_of[name]) end
local room_count = #names > 0 and redis.call('ZCARD', sizes_key) or 0

-- Ids of entries are given here, as Redis would: the room keeps that of `occupied`.
local top_ms, top_n, top_prefix
local function add_entry(type, room, item)
  if not top_ms then
    local ms, n = string.match(stream_fact(events_key, 'last-generated-id') or '0-0', '^(%d+)-(%d+)$')
    top_ms, top_n = tonumber(ms), tonumber(n)
    if top_ms < now_ms then top_ms, top_n = now_ms, -1 end
    top_prefix = digits(top_ms) .. '-'
  end
  top_n = top_n + 1
  local id = top_prefix .. digits(top_n)
  will('XADD', events_key, 'MAXLEN', '~', stream_maxlen, id, 'v', '1', 'type', type, 'room', room.name,
    'uid', items[item + 2], 'count', digits(room.size), 'public', digits(room.size - room.invisible),
    'at_ms', items[item + 5], 'reason', items[item + 6], 'event_id', items[item + 3], 'source', source)
  return id
end

local function is_invisible(value)
  return value and string.byte(value, -1) == 105 and 1 or 0  -- i
end

local function set_value(room, uid, value)
  room.invisible = room.invisible + is_invisible(value) - is_invisible(room.values[uid])
  room.values[uid], room.changed[uid] = value, true
end

local function join(room, item)
  local uid = items[item + 2]
  local is_new = not room.values[uid]
  if is_new and room.size == 0 then
    if room_count >= max_rooms then
      refused = refused + 1
      return
    end
    room_count, occupied = room_count + 1, occupied + 1
  end
  set_value(room, uid, items[item + 3] .. ' ' .. items[item + 4])
  if items[item] == 'a' then differences = differences + 1 end
  if not is_new then return end
  room.size, joined = room.size + 1, joined + 1
  if room.size == 1 then set_value(room, OCCUPIED, add_entry('occupied', room, item)) end
  if tells_members then add_entry('joined', room, item) end
end

local function leave(room, item)
  set_value(room, items[item + 2], false)
  room.size, left = room.size - 1, left + 1
  if items[item] == 'd' then differences = differences + 1 end
  if tells_members then add_entry('left', room, item) end
  if room.size > 0 then return end
  room_count, vacated = room_count - 1, vacated + 1
  add_entry('vacated', room, item)
  set_value(room, OCCUPIED, false)
end

for i = 1, #items, ITEM do
  local op, room, letter = items[i], rooms[items[i + 1]], items[i + 4]
  local value = room.values[items[i + 2]]
  if op == 'j' or (op == 'a' and not (value and string.sub(value, -1) == letter)) then
    join(room, i)
  elseif value and (op == 'l' or (op == 'd' and value == letter)) then
    leave(room, i)
  end
end

local function will_in_slices(command, key, values)
  for first = 1, #values, VALUES_A_CALL do
    will(command, key, unpack(values, first, math.min(first + VALUES_A_CALL - 1, #values)))
  end
end

local sizes, emptied = {}, {}
for _, name in ipairs(names) do
  local room = rooms[name]
  if next(room.changed) ~= nil then
    local present, absent = {}, {}
    local invisible = room.invisible > 0 and digits(room.invisible) or false
    if invisible ~= room.invisible_before then room.values[INVISIBLE], room.changed[INVISIBLE] = invisible, true end
    for field in pairs(room.changed) do
      local value = room.values[field]
      if value then
        present[#present + 1], present[#present + 2] = field, value
      else
        absent[#absent + 1] = field
      end
    end
    will_in_slices('HSET', room.key, present)
    will_in_slices('HDEL', room.key, absent)
    if room.size > 0 then
      sizes[#sizes + 1], sizes[#sizes + 2] = digits(room.size), name
    else
      emptied[#emptied + 1] = name
    end
  end
end
will_in_slices('ZADD', sizes_key, sizes)
will_in_slices('ZREM', sizes_key, emptied)

local stored = {}
local function store(name, value)
  stored[#stored + 1], stored[#stored + 2] = name, value
end
if from ~= '-' and to ~= from then store(source, to) end
if joined ~= left then store('members', digits(members + joined - left)) end
if walk ~= '' then store('walk', walk) end
will_in_slices('HSET', sources_key, stored)
carry_out_all(sources_key)
return reply('ok', joined, left, occupied, vacated, differences, refused)
