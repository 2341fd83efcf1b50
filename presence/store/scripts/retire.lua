-- requires: effects shard refuse_outdated entries changes owned_sessions
-- Ends the sessions that previous generations of the node still own, whose end was skipped or lost, and removes
-- pending logins that came back with lost writes of Redis. One bounded call of several.
--
-- KEYS and ARGV 1-9: see lib/shard.lua. ARGV
--   10 cursor of `scan_owned`, "0" first
--   11 approximate number of fields to read
--   12 latest ms at which these sessions can have been seen; 0: unknown, then now
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when refused (history,
-- fenced, unknown, as in apply), else {status = "ok", last_id, told (as in apply), cursor, ended = number of
-- sessions}. Cursor "0": done. Sending a call again changes nothing, since an end compares session, node and
-- generation.

local cursor, fields, latest_ms = ARGV[10], ARGV[11], tonumber(ARGV[12])

local refusal = finish_former(meta_key) or refuse_outdated()
if refusal then return refusal end

local ended = 0
local function retire(field, uid, device, owned_generation, session)
  if owned_generation < generation
      and end_owned(node, field, uid, device, owned_generation, session, latest_ms) then
    ended = ended + 1
  end
end

local next_cursor = scan_owned(node, cursor, fields, retire)
collect_writes()
drop_pending_logins(node)  -- none is held back any more
return carry_out_effects()
  or answer_with({status = 'ok', last_id = highest_id, told = event_counts, cursor = next_cursor, ended = ended})
