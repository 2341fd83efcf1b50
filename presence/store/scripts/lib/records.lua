-- Records of users, as this call has read them and will have written them.

local function is_session(value)
  return type(value) == 'table' and type(value.session) == 'string' and type(value.node) == 'string'
    and type(value.login_ms) == 'number' and type(value.arrived_ms) == 'number'
end

-- What this call has read, and what it will have written when it ends (`write_back`): one call of Redis takes a few
-- hundred fields at the price of a handful. Until then reads go by these tables, never by Redis.
local read = {}     -- uid -> JSON of its record as Redis has it; false: none
local written = {}  -- uid -> the same as it is to be; false: the user goes offline
local seen = {}     -- uid -> digits of the ms last seen; false: to be removed
local owned = {}    -- key of a node's hash -> {field -> value; false: to be removed}

local VALUES_A_CALL = 1000  -- even, and well within what unpack can put on the stack

-- Reads the records of several users at once.
local function read_ahead(uids)
  for first = 1, #uids, VALUES_A_CALL do
    local last = math.min(first + VALUES_A_CALL - 1, #uids)
    local found = redis.call('HMGET', online_key, unpack(uids, first, last))
    for i = first, last do read[uids[i]] = found[i - first + 1] end
  end
end

-- Returns the JSON of a user's record as it is now; nil or false: none.
local function record_text(uid)
  local text = written[uid]
  if text == nil then text = read[uid] end
  if text == nil then
    text = redis.call('HGET', online_key, uid)
    read[uid] = text
  end
  return text
end

local function read_record(uid)
  local text = record_text(uid)
  if not text then return nil end
  local ok, record = pcall(cjson.decode, text)
  if not ok or type(record) ~= 'table' or type(record.id) ~= 'string' or type(record.since_ms) ~= 'number'
      or type(record.sessions) ~= 'table' or not next(record.sessions) then
    return nil
  end
  for _, session in pairs(record.sessions) do
    if not is_session(session) then return nil end
  end
  local state = record.state
  if state ~= nil and not (type(state) == 'table' and type(state.id) == 'string'
      and type(state.since_ms) == 'number') then
    record.state = nil
  end
  return record
end

