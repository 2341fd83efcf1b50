-- requires: shard
-- provides: RECORD_BYTES VALUES_A_CALL is_session left owned read read_ahead read_record record_text
-- provides: records remains_of_record seen written
-- Records of users: as read by this call, and as it will write them.

local function is_session(value)
  return type(value) == 'table' and type(value.session) == 'string' and type(value.node) == 'string'
    and is_number(value.login_ms) and is_number(value.arrived_ms) and is_count(value.generation)
    and (value.idle_timeout_ms == nil or is_number(value.idle_timeout_ms))
end

-- What this call has read, and what it will write at its end (`collect_writes`): one command with a few hundred fields costs
-- as much as a few small ones. Until then reads use these tables, never Redis.
local read = {}     -- uid -> JSON of its record in Redis; false: none
local records = {}  -- uid -> its record, decoded once a call; false: none
local written = {}  -- uid -> true: `records` has its new record, which is encoded at the end; false: it goes offline
local seen = {}     -- uid -> digits of the ms last seen; false: to be removed
local left = {}     -- uid -> how the user went offline, see lib/shard.lua; false: to be removed
local owned = {}    -- node id -> {field of its sessions -> value; false: to be removed}

local VALUES_A_CALL = 1000  -- even, and well within the stack limit of unpack
local RECORDS_A_READ = 64  -- so that little is read beyond RECORD_BYTES
local RECORD_BYTES = 1024 * 1024  -- of the records that a call may work on: at most some 20 ms

-- Reads the records of several users, each named once, in order. Returns how many of them this call may work on: all, or
-- those whose records have at most RECORD_BYTES together, but at least one.
local function read_ahead(uids)
  local room = RECORD_BYTES
  for first = 1, #uids, RECORDS_A_READ do
    local last = math.min(first + RECORDS_A_READ - 1, #uids)
    local found = redis.call('HMGET', online_key, unpack(uids, first, last))
    for i = first, last do
      local text = found[i - first + 1]
      read[uids[i]] = text
      room = room - (text and #text or 0)
      if room < 0 and i > 1 then return i - 1 end
    end
  end
  return #uids
end

-- Returns the JSON of a user's record in Redis; nil or false: none.
local function record_text(uid)
  local text = read[uid]
  if text == nil then
    text = redis.call('HGET', online_key, uid)
    read[uid] = text
  end
  return text
end

local function decoded_record(text)
  local ok, record = pcall(cjson.decode, text)
  if not ok or type(record) ~= 'table' or type(record.id) ~= 'string' or not is_number(record.since_ms)
      or type(record.sessions) ~= 'table' or not next(record.sessions) then
    return false
  end
  for _, session in pairs(record.sessions) do
    if not is_session(session) then return false end
    if session.late_ms ~= nil and not is_number(session.late_ms) then session.late_ms = nil end
  end
  local state = record.state
  if state ~= nil and not (type(state) == 'table' and type(state.id) == 'string'
      and is_number(state.since_ms)) then
    record.state = nil
  end
  if type(record.public) ~= 'string' then record.public = nil end
  if type(record.privacy) ~= 'string' then record.privacy = nil end
  return record
end

-- Returns the current record of a user, nil if there is none. Who changes it has to call `write_record` afterwards.
local function read_record(uid)
  local record = records[uid]
  if record == nil then
    local text = record_text(uid)
    record = text and decoded_record(text)
    records[uid] = record
  end
  return record or nil
end

-- Returns what is left of a record that `read_record` has found lost or unreadable: the id of the online event and the ms
-- since when, as texts; nil for what is not. Numbers of 15 digits are exact.
local function remains_of_record(uid)
  local text = written[uid] == nil and record_text(uid)
  if not text then return end
  local since_ms = string.match(text, '"since_ms":(%d+)[,}]')
  return string.match(text, '"id":"(%d+%-%d+)"'), since_ms and #since_ms < 16 and since_ms or nil
end

