-- Put after lib/effects.lua and before timers/prelude.lua: a write of the scripts of follow-ups becomes an effect, which
-- `write_followups` carries out. No script uses the answer to a write.

local whole = redis
local WRITES = {DEL = true, HDEL = true, HINCRBY = true, HSET = true, XADD = true, ZADD = true, ZREM = true}
local redis = {error_reply = whole.error_reply, call = function(command, ...)
  if WRITES[command] then return will(command, ...) end
  return whole.call(command, ...)
end}

-- Raises the error reply of a write, with its code where Redis can take it from a table (7 or newer).
local function raise(problem)
  if problem then error(whole.acl_check_cmd and problem or problem.err, 0) end
end

