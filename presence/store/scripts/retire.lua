-- requires: shard records news events changes
-- Ends what the node's generations before this one still own: sessions that it no longer has, whose end
-- was skipped or lost; and marks that Redis went back to. One bounded call of several.
--
-- KEYS and ARGV 1-9: see lib/shard.lua. ARGV
--   10 cursor of HSCAN, "0" first
--   11 how many fields to look at, roughly
--   12 ms by which these sessions were last seen at the latest; 0: not known, then now
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when refused (history,
-- fenced, unknown, as in apply), else {status = "ok", last_id, told (as in apply), cursor, ended = number of
-- sessions}. Cursor "0": done. Sending a call again changes nothing, since an end compares session, node and
-- generation.

local refusal = refuse_outdated() or refuse_unpermitted()
if refusal then return refusal end

local ended = 0
local function retire(field, uid, device, owned_generation, session)
  if owned_generation < generation
      and end_owned(node, field, uid, device, owned_generation, session, tonumber(ARGV[12])) then
    ended = ended + 1
  end
end

-- A mark that Redis went back to goes: nothing is held back any more.
local function is_not_pending(field)
  return not string.find(field, '  held$')
end

local cursor = scan_owned(node_key, ARGV[10], ARGV[11], retire, is_not_pending)
write_back()
return {cmsgpack.pack({status = 'ok', last_id = highest_id, told = event_counts, cursor = cursor, ended = ended}), history}
