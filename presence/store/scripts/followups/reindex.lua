-- Restores what leads to some follow-ups, `due` and `of`, from `work`: one bounded call of a walk over all of them. What is
-- lost of these two says nothing, and must not pass for "nothing is planned".
--
-- The walk also finds by how much the counted memory of all is wrong: because servers of an older version deleted
-- follow-ups, or because the count was lost. A call compares its share of the count with what it has read.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 cursor of HSCAN, "0" first   3 approximate number of follow-ups to read
-- Returns MessagePack: [cursor, number of follow-ups restored, bytes by which the share was too low, `recounts` of `state`].

local cursor, followups_to_read = ARGV[2], ARGV[3]

local scan = redis.call('HSCAN', work_key, cursor, 'COUNT', followups_to_read)
local restored, found_bytes, counted_bytes = 0, 0, followup_bytes()
for i = 1, #scan[2], 2 do
  local id = scan[2][i]
  local followup = read_followup(id)
  if followup and type(followup[BYTES]) == 'number' then found_bytes = found_bytes + followup[BYTES] end
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
local share = #scan[2] > 0 and #scan[2] / 2 / redis.call('HLEN', work_key) or 0
write_followups()
return cmsgpack.pack({scan[1], restored, found_bytes - counted_bytes * share, recounts()})
