-- Names keys whose values have another type than they should.
--
-- KEYS any, in one hash slot
-- ARGV a command for each that reads a value of the type that it should have: HLEN, SMEMBERS, XRANGE, ZSCORE
-- Returns the names of those that cannot be read so. A command without permission tells nothing.

local commands = ARGV
local MORE = {XRANGE = {'-', '-'}, ZSCORE = {''}}
local found = {}
for i, key in ipairs(KEYS) do
  local answer = redis.pcall(commands[i], key, unpack(MORE[commands[i]] or {}))
  if type(answer) == 'table' and answer.err and string.find(answer.err, 'WRONGTYPE', 1, true) then
    found[#found + 1] = key
  end
end
return found
