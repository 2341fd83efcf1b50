-- Restores what leads to some follow-ups, `due` and `of`, from `work`: one bounded call of a walk over all of them. What is
-- lost of these two says nothing, and must not pass for "nothing is planned".
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 cursor of HSCAN, "0" first   3 approximate number of follow-ups to read
-- Returns MessagePack: [cursor, number of follow-ups restored].

local scan = redis.call('HSCAN', work_key, ARGV[2], 'COUNT', ARGV[3])
local restored = 0
for i = 1, #scan[2], 2 do
  local id = scan[2][i]
  local followup = read_followup(id)
  local is_known = false
  for _, each in ipairs(followup and ids_of(followup[UID]) or {}) do is_known = is_known or each == id end
  if not followup then
    delete_followup(id)  -- damaged
  elseif not is_known then
    add_followup(id, followup)
    restored = restored + 1
  elseif not redis.call('ZSCORE', due_key, id) then
    set_due(id, followup, followup[DUE])
    restored = restored + 1
  end
end
write_followups()
return cmsgpack.pack({scan[1], restored})
