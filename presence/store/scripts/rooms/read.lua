-- One read of a projector: what the events of a source shard say about rooms, and records of users for the comparison.
--
-- KEYS 1 rooms:state   2 events   3 online   4 meta   5 rooms:sources   6 rooms:sizes   7 absent
-- ARGV
--   1 id of the projector   2 its lease, ms: for that long no other one needs to read
--   3 "begin": the projector knows nothing of the shard; "reset": it begins a rebuild, after the last entry; or the last entry
--     it has read, "0-0" before the first
--   4 epoch: that of the projector; with "begin" and "reset" a new token
--   5 "", or MessagePack [name, value...] to store in `state`   6 "", or the token of a rebuild that is complete
--   7 "", or an id that must be that of an entry   8 most events to read   9 most items of these; the last event may exceed it
--   10 "", or the cursor of a page of records, "0" first   11 its approximate size
-- Returns MessagePack, one of
--   ["busy", ms]: another projector is active, for so long   ["lost"]: it was active meanwhile, or data was lost: begin
--   ["begun", cursor, epoch, begun, rebuild]   ["reset", cursor, rebuild]
--   ["read", cursor, number of events read, whether these are all, gap, whether users have rooms, rebuild, walk ("": none is
--     due), rooms and members of this room shard, Redis' time in ms, id of the first event ("": none), what the events mean,
--     cursor of the next page ("": none was read), page]. gap: the entry that was read last is missing, so others may be; then
--     nothing was read.
-- What events mean is as project.lua takes it: so their number makes little work for a projector. A page
-- is [uid, record...]: of users who are or were in rooms. Only after all events a page is read: so it is the state after
-- exactly those.

local LETTERS = {away = ' a', busy = ' b', dnd = ' d'}

local state_key, online_key, meta_key, sources_key, sizes_key = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local projector, lease_ms, cursor, epoch, finished = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[6]
local packed, wanted_id, max_events, max_items = ARGV[5], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
local page_cursor, page_size = ARGV[10], ARGV[11]

raise(finish_former(state_key))
local state = redis.call('HMGET', state_key, 'runner', 'until_ms', 'epoch', 'rebuild', 'walked', 'cursor', 'begun', 'rebuilds')
local left_ms = (tonumber(state[2] or '') or 0) - now_ms
local rebuild = state[4] or ''
if state[1] and state[1] ~= projector and left_ms > 0 and left_ms <= lease_ms then return reply('busy', left_ms) end
local is_runner = state[1] == projector
if cursor ~= 'begin' and not (is_runner and (cursor == 'reset' or state[3] == epoch)) then return reply('lost') end

local stored = packed ~= '' and cmsgpack.unpack(packed) or {}
local function store(name, value)
  stored[#stored + 1], stored[#stored + 2] = name, value
end
if not is_runner or left_ms > lease_ms or left_ms < lease_ms * 2 / 3 then
  store('runner', projector)
  store('until_ms', digits(now_ms + lease_ms))
end

local function write()
  if #stored > 0 then will('HSET', state_key, unpack(stored)) end
  carry_out_all(state_key)
end

local has_rooms = redis.call('HGET', meta_key, 'rooms') == '1'

if cursor == 'begin' then
  local known = state[3] and state[6]
  if not known then  -- the first time, or the state is lost
    state[3], state[6], state[7] = epoch, last_of(events_key), nil
    if has_rooms and rebuild == '' then
      rebuild = epoch
      store('rebuild', rebuild)
    end
    store('epoch', epoch)
    store('cursor', state[6])
    will('HDEL', state_key, 'begun')
  end
  write()
  return reply('begun', state[6], state[3], state[7] or '', rebuild)
end

if cursor == 'reset' then
  cursor = last_of(events_key)
  if rebuild == '' then
    rebuild = epoch
    store('rebuild', rebuild)
  end
  store('epoch', epoch)
  store('cursor', cursor)
  will('HDEL', state_key, 'begun')
  write()
  return reply('reset', cursor, rebuild)
end

if finished ~= '' and finished == rebuild then
  rebuild = ''
  will('HDEL', state_key, 'rebuild')
  store('rebuilds', digits((tonumber(state[8] or '') or 0) + 1))
end

local rooms, items_of, n_items = {}, {}, 0  -- the rooms in order; room -> its items, see project.lua

local function add_item(room, uid, value, at_ms, reason)
  local items = items_of[room]
  if items then
    local n = #items
    items[n + 1], items[n + 2], items[n + 3], items[n + 4] = uid, value, at_ms, reason
  else
    items_of[room], rooms[#rooms + 1] = {uid, value, at_ms, reason}, room
  end
  n_items = n_items + 1
end

local function add_items(names, uid, value, at_ms, reason)
  if names == '' then return end
  if not string.find(names, ' ', 1, true) then return add_item(names, uid, value, at_ms, reason) end
  for room in string.gmatch(names, '%S+') do add_item(room, uid, value, at_ms, reason) end
end

local VARYING = 23  -- place of the first field that not all events of users have
local found = {}

-- Adds what an event says. Fields that all events of users have are expected where lib/events.lua puts them; a look at each
-- name takes four times as long.
local function add_event(id, fields)
  local type, uid, reason, at_ms, first = fields[4], fields[6], fields[10], fields[22], VARYING
  if not (fields[3] == 'type' and fields[5] == 'uid' and fields[9] == 'reason' and fields[21] == 'at_ms') then
    found.type, found.uid, found.reason, found.at_ms = nil, nil, nil, nil
    for i = 1, #fields, 2 do found[fields[i]] = fields[i + 1] end
    type, uid, reason, at_ms, first = found.type, found.uid, found.reason or '', found.at_ms or '0', 1
  end
  if not uid then return end
  local letter, is_invisible, names, left = ' -', false, '', ''
  for i = first, #fields, 2 do
    local name = fields[i]
    if name == 'rooms' then
      names = fields[i + 1]
    elseif name == 'rooms_left' then
      left = fields[i + 1]
    elseif name == 'status' then
      letter = LETTERS[fields[i + 1]] or letter
    elseif name == 'invisible' then
      is_invisible = true
    end
  end
  add_items(names, uid, type == 'offline' and id or id .. (is_invisible and ' i' or letter), at_ms, reason)
  add_items(left, uid, id, at_ms, reason)
end

-- Returns what all events say, as project.lua takes it.
local function groups()
  local flat, n = {}, 0
  for _, room in ipairs(rooms) do
    local items = items_of[room]
    flat[n + 1], flat[n + 2], n = room, #items, n + 2
    for i = 1, #items do flat[n + i] = items[i] end
    n = n + #items
  end
  return flat
end

local n_read, is_end, is_gap, first_id = 0, true, false, ''
if not has_rooms then
  cursor = last_of(events_key)
else
  local first = cursor == '0-0' and 1 or 2
  local entries = redis.call('XRANGE', events_key, cursor, '+', 'COUNT', max_events + first - 1)
  is_gap = first == 2 and not (entries[1] and entries[1][1] == cursor)
    or wanted_id ~= '' and #redis.call('XRANGE', events_key, wanted_id, wanted_id, 'COUNT', 1) == 0
  is_end = #entries < max_events + first - 1
  if not is_gap and entries[first] then first_id = entries[first][1] end
  for i = first, is_gap and 0 or #entries do
    add_event(entries[i][1], entries[i][2])
    cursor, n_read = entries[i][1], n_read + 1
    if n_items >= max_items and i < #entries then
      is_end = false
      break
    end
  end
end

local next_page, page = '', {}
if page_cursor ~= '' and is_end and not is_gap then
  local scan = redis.call('HSCAN', online_key, page_cursor, 'COUNT', page_size)
  next_page = scan[1]
  for i = 1, #scan[2], 2 do
    if string.find(scan[2][i + 1], '"rooms":', 1, true) then
      page[#page + 1], page[#page + 2] = scan[2][i], scan[2][i + 1]
    end
  end
end
local sources = redis.call('HMGET', sources_key, 'walk', 'members')
local walk = sources[1] and sources[1] ~= state[5] and sources[1] or ''
write()
return reply('read', cursor, n_read, is_end, is_gap, has_rooms, rebuild, walk, redis.call('ZCARD', sizes_key),
  tonumber(sources[2] or '') or 0, digits(now_ms), first_id, groups(), next_page, page)
