-- Ends what the node's generations before this one still own: sessions that it no longer has, whose end
-- was skipped or lost; and marks that Redis went back to. One bounded call of several.
--
-- KEYS and ARGV 1-9: see prelude.lua. ARGV
--   10 cursor of HSCAN, "0" first
--   11 how many fields to look at, roughly
--   12 ms by which these sessions were last seen at the latest; 0: not known, then now
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when refused (history,
-- fenced, unknown, as in apply), else {status = "ok", last_id, told (as in apply), cursor, ended = number of
-- sessions}. Cursor "0": done. Sending a call again changes nothing, since an end compares session, node and
-- generation.

local refusal = refuse_outdated() or refuse_unpermitted()
if refusal then return refusal end

local scan = redis.call('HSCAN', node_key, ARGV[10], 'COUNT', ARGV[11])
local ended, uids = 0, {}
for i = 1, #scan[2], 2 do uids[#uids + 1] = string.match(scan[2][i], '^(%S+) %S*$') end
read_ahead(uids)
ask_watched(uids)
for i = 1, #scan[2], 2 do
  local uid, device = string.match(scan[2][i], '^(%S+) (%S*)$')
  if uid then
    local owned_generation, session = string.match(scan[2][i + 1], '^(%d+) (.*)$')
    owned_generation = tonumber(owned_generation)
    if not owned_generation then
      own(node_key, scan[2][i], false)  -- a damaged one
    elseif owned_generation < generation
        and end_owned(node, scan[2][i], uid, device, owned_generation, session, tonumber(ARGV[12])) then
      ended = ended + 1
    end
  elseif string.find(scan[2][i], '  held$') then
    own(node_key, scan[2][i], false)  -- a mark that Redis went back to: nothing is held back any more
  end
end
write_back()
return {cmsgpack.pack({status = 'ok', last_id = highest_id, told = told, cursor = scan[1], ended = ended}), history}
