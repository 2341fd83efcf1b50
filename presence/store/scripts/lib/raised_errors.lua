-- requires: effects
-- provides: carry_out_all raise
-- The end of a call of the scripts of timers, follow-ups and wheels, whose errors are raised. Put after lib/effects.lua. No
-- such script reads what it is about to write.

-- Raises the error reply of a write, with its code where Redis can take it from a table (7 or newer).
local function raise(problem)
  if problem then error(redis.acl_check_cmd and problem or problem.err, 0) end
end

-- Carries out the effects of this call, if it has any; see lib/effects.lua.
local function carry_out_all(hash, prefix, channels)
  if effect_count > 0 then raise(carry_out(hash, channels or {}, prefix)) end
end

