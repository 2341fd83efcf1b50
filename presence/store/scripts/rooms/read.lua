-- One read of a projector: what the events of a source shard say about rooms, and records of users for the comparison.
--
-- KEYS 1 rooms:state   2 events   3 online   4 meta   5 rooms:sources   6 rooms:sizes   7 absent
-- ARGV
--   1 id of the projector   2 its lease, ms: for that long no other one needs to read
--   3 "begin": the projector knows nothing of the shard; "reset": it begins a rebuild, after the last entry; or the last entry
--     it has read, "0-0" before the first
--   4 epoch: that of the projector; with "begin" and "reset" a new token
--   5 "", or MessagePack [name, value...] to store in `state`   6 "", or the token of a rebuild that is complete
--   7 "", or an id that must be that of an entry   8 most events to read
--   9 "", or the cursor of a page of records, "0" first   10 its approximate size
-- Returns MessagePack, one of
--   ["busy", ms]: another projector is active, for so long   ["lost"]: it was active meanwhile, or data was lost: begin
--   ["begun", cursor, epoch, begun, rebuild]   ["reset", cursor, rebuild]
--   ["read", cursor, number of events read, whether these are all, gap, whether users have rooms, rebuild, walk ("": none is
--     due), rooms and members of this room shard, Redis' time in ms, events, cursor of the next page ("": none was read),
--     page]. gap: the entry that was read last is missing, so others may be; then nothing was read.
-- Events are [id, uid, at_ms, reason, letter ("": offline), rooms, rooms left...], a page is [uid, record...]: of users who are
-- or were in rooms. Only after all events a page is read: so it is the state after exactly those.

local TEXT_BYTES = 262144  -- of names of rooms in an answer; the last event may exceed it
local LETTERS = {away = 'a', busy = 'b', dnd = 'd'}

local state_key, online_key, meta_key, sources_key, sizes_key = KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local projector, lease_ms, cursor, epoch, finished = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[6]
local packed, wanted_id, max_events, page_cursor, page_size = ARGV[5], ARGV[7], tonumber(ARGV[8]), ARGV[9], ARGV[10]

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

local events, text_bytes, n_read, is_end, is_gap = {}, 0, 0, true, false

local WANTED = {uid = 1, at_ms = 2, reason = 3, type = 4, status = 5, invisible = 6, rooms = 7, rooms_left = 8}
local found = {}  -- the values of one event; a table for all takes half the time

local function add_event(id, fields)
  for i = 1, 8 do found[i] = false end
  for i = 1, #fields, 2 do
    local place = WANTED[fields[i]]
    if place then found[place] = fields[i + 1] end
  end
  local rooms, left = found[7] or '', found[8] or ''
  if not found[1] or (rooms == '' and left == '') then return end
  local n, letter = #events, ''
  if found[4] ~= 'offline' then letter = found[6] and 'i' or LETTERS[found[5]] or '-' end
  events[n + 1], events[n + 2], events[n + 3], events[n + 4] = id, found[1], found[2] or '0', found[3] or ''
  events[n + 5], events[n + 6], events[n + 7] = letter, rooms, left
  text_bytes = text_bytes + #rooms + #left
end

if not has_rooms then
  cursor = last_of(events_key)
else
  local first = cursor == '0-0' and 1 or 2
  local entries = redis.call('XRANGE', events_key, cursor, '+', 'COUNT', max_events + first - 1)
  is_gap = first == 2 and not (entries[1] and entries[1][1] == cursor)
    or wanted_id ~= '' and #redis.call('XRANGE', events_key, wanted_id, wanted_id, 'COUNT', 1) == 0
  is_end = #entries < max_events + first - 1
  for i = first, is_gap and 0 or #entries do
    add_event(entries[i][1], entries[i][2])
    cursor, n_read = entries[i][1], n_read + 1
    if text_bytes >= TEXT_BYTES and i < #entries then
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
  tonumber(sources[2] or '') or 0, digits(now_ms), events, next_page, page)
