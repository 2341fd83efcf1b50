-- What a script finds in Redis' Lua beside the language: `redis`, `cjson`, `cmsgpack`; and how it is run.
--
-- Arguments: the Python functions
--   raw(name, ...)       performs a command: returns a reply that is no array; true and the elements of a flat array;
--                        or nil and the text of an error
--   unjson(text, null)   returns the value of a JSON text; or nil and the text of an error
--   unpacked(text)       the same of MessagePack; true and the elements of a flat array
--   sha1(text)
-- Returns compile(text), run(chunk, keys, arguments) and `null`.

local raw, unjson, unpacked, sha1 = ...

local null = newproxy()

collectgarbage('setpause', 1000)  -- a script leaves little behind; collecting less often saves a part of its time

local function flat(kind, ...)
  if kind == true then return {...} end
  if kind == nil and select('#', ...) > 0 then error({err = (...)}, 0) end
  return kind
end

local redis = {}
redis.call = function(...) return flat(raw(...)) end
redis.pcall = function(...)
  local ok, reply = pcall(redis.call, ...)
  if ok or type(reply) == 'table' then return reply end
  error(reply, 0)
end
redis.error_reply = function(text)
  if string.sub(text, 1, 1) == '-' then return {err = string.sub(text, 2)} end
  return {err = string.find(text, ' ', 1, true) and text or 'ERR ' .. text}
end
redis.acl_check_cmd = function() return true end
redis.status_reply = function(text) return {ok = text} end
redis.sha1hex = function(text) return sha1(text) end
redis.log = function() end
redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3

-- cjson

local SAFE_ARRAY_ITEMS, SPARSE_RATIO = 10, 2  -- an array may have that many holes

local ESCAPES = {['"'] = '\\"', ['\\'] = '\\\\', ['/'] = '\\/', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n',
  ['\r'] = '\\r', ['\t'] = '\\t'}
local function escaped(char) return ESCAPES[char] or string.format('\\u%04x', string.byte(char)) end

local function json_text(text) return '"' .. string.gsub(text, '[%c"\\/]', escaped) .. '"' end

local function json_number(number)
  if number ~= number or number == math.huge or number == -math.huge then
    error('Cannot serialise number: must not be NaN or Inf', 0)
  end
  return string.format('%.14g', number)
end

-- Returns how many places an array takes; nil: it is none.
local function places(value)
  local max, items = 0, 0
  for key in pairs(value) do
    if type(key) ~= 'number' or key < 1 or key ~= math.floor(key) then return nil end
    max, items = math.max(max, key), items + 1
  end
  if max > items * SPARSE_RATIO and max > SAFE_ARRAY_ITEMS then
    error('Cannot serialise table: excessively sparse array', 0)
  end
  return max > 0 and max or nil
end

local function to_json(value)
  local kind = type(value)
  if kind == 'string' then return json_text(value) end
  if kind == 'number' then return json_number(value) end
  if kind == 'boolean' then return tostring(value) end
  if value == nil or value == null then return 'null' end
  if kind ~= 'table' then error('Cannot serialise ' .. kind .. ': type not supported', 0) end
  local parts, n = {}, places(value)
  if n then
    for i = 1, n do parts[i] = to_json(value[i]) end
    return '[' .. table.concat(parts, ',') .. ']'
  end
  for key, each in pairs(value) do
    if type(key) ~= 'string' and type(key) ~= 'number' then
      error('Cannot serialise ' .. type(key) .. ': table key must be a number or string', 0)
    end
    local name = type(key) == 'string' and json_text(key) or '"' .. json_number(key) .. '"'
    parts[#parts + 1] = name .. ':' .. to_json(each)
  end
  return '{' .. table.concat(parts, ',') .. '}'
end

local function decoded(kind, ...)
  if kind == nil and select('#', ...) > 0 then error((...), 0) end
  if kind == true and select('#', ...) > 0 then return {select(2, ...)} end
  return kind
end

local cjson = {
  null = null,
  encode = to_json,
  decode = function(text) return decoded(unjson(text, null)) end,
}

-- cmsgpack

local char, floor = string.char, math.floor

local function bytes_of_four(number)
  local high = floor(number / 0x10000)
  return char(floor(high / 256) % 256, high % 256, floor(number / 256) % 256, number % 256)
end

-- Returns the `count` bytes of a whole number, the highest first; of a negative one its complement.
local function bytes(number, count)
  if count == 2 then return char(floor(number / 256) % 256, number % 256) end
  if count == 4 then return bytes_of_four(number) end
  return bytes_of_four(floor(number / 0x100000000)) .. bytes_of_four(number)
end

local function pack_integer(number)
  if number >= 0 then
    if number < 0x80 then return char(number) end
    if number < 0x100 then return '\204' .. char(number) end
    if number < 0x10000 then return '\205' .. bytes(number, 2) end
    if number < 0x100000000 then return '\206' .. bytes(number, 4) end
    return '\207' .. bytes(number, 8)
  end
  if number >= -0x20 then return char(256 + number) end
  if number >= -0x80 then return '\208' .. char(256 + number) end
  if number >= -0x8000 then return '\209' .. bytes(number, 2) end
  if number >= -0x80000000 then return '\210' .. bytes(number, 4) end
  return '\211' .. bytes(number, 8)
end

local function sized(size, small, small_limit, byte, two, four)
  if size < small_limit then return char(small + size) end
  if byte and size < 0x100 then return byte .. char(size) end
  if size < 0x10000 then return two .. bytes(size, 2) end
  return four .. bytes(size, 4)
end

local pack_value

local function pack_table(value)
  local items, max, is_array = 0, 0, true
  for key in pairs(value) do
    items = items + 1
    if type(key) ~= 'number' or key < 1 or key ~= floor(key) then is_array = false
    elseif key > max then max = key end
  end
  local parts = {}
  if is_array and max == items then
    parts[1] = sized(items, 0x90, 16, nil, '\220', '\221')
    for i = 1, items do parts[i + 1] = pack_value(value[i]) end
  else
    parts[1] = sized(items, 0x80, 16, nil, '\222', '\223')
    for key, each in pairs(value) do
      parts[#parts + 1] = pack_value(key)
      parts[#parts + 1] = pack_value(each)
    end
  end
  return table.concat(parts)
end

function pack_value(value)
  local kind = type(value)
  if kind == 'string' then return sized(#value, 0xa0, 32, '\217', '\218', '\219') .. value end
  if kind == 'number' then
    if value == floor(value) and value >= -2 ^ 63 and value < 2 ^ 63 then return pack_integer(value) end
    error('fractions are left out of this library', 0)
  end
  if kind == 'boolean' then return value and '\195' or '\194' end
  if kind == 'table' then return pack_table(value) end
  return '\192'
end

local cmsgpack = {
  pack = function(...)
    if select('#', ...) == 0 then error('bad argument #0 to \'pack\' (MessagePack pack needs input.)', 0) end
    local parts = {}
    for i = 1, select('#', ...) do parts[i] = pack_value((select(i, ...))) end
    return table.concat(parts)
  end,
  unpack = function(text) return decoded(unpacked(text)) end,
}

-- What a script sees: nothing that outlives it can be changed.

local function refuse_writing() error('Attempt to modify a readonly table', 2) end
local function read_only(fields) return setmetatable({}, {__index = fields, __newindex = refuse_writing}) end

local globals = {redis = read_only(redis), cjson = read_only(cjson), cmsgpack = read_only(cmsgpack),
  string = read_only(string), table = read_only(table), math = read_only(math), _VERSION = _VERSION}
for _, name in ipairs({'assert', 'error', 'ipairs', 'next', 'pairs', 'pcall', 'rawequal', 'rawget', 'select', 'tonumber',
    'tostring', 'type', 'unpack', 'xpcall'}) do
  globals[name] = _G[name]
end
setmetatable(globals, {__index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end})
local environment = read_only(globals)

local function compile(text)
  local chunk, problem = loadstring(text, '@user_script')
  if not chunk then return nil, problem end
  return setfenv(chunk, environment)
end

-- Returns a word that says what kind of answer it is, and the answer.
local function answer(ok, value)
  local kind = type(value)
  if not ok then
    if kind == 'table' and value.err then return 'error', value.err end
    if kind == 'string' then return 'error', 'ERR ' .. value end
    return 'raise', value
  end
  if kind ~= 'table' then return kind, value end
  if value.err then return 'error', value.err end
  if value.ok then return 'status', value.ok end
  for i = 1, #value do
    local inner = type(value[i])
    if inner ~= 'string' and inner ~= 'number' then return 'table', value end
  end
  return 'list', unpack(value)
end

local function run(chunk, keys, arguments)
  globals.KEYS, globals.ARGV = keys, arguments
  return answer(pcall(chunk))
end

return compile, run, null
