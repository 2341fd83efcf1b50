-- requires: effects shard outdated traces record_cache index
-- Restores the index of sessions by node for some of the users online: one bounded call of a walk over all of them.
--
-- KEYS and ARGV 1-9: see lib/shard.lua. ARGV
--   10 cursor of HSCAN over `online`, "0" first
--   11 approximate number of users to read
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when refused (history, fenced,
-- unknown, as in apply), else {status = "ok", cursor, restored = number of sessions that the index lacked, damaged = some
-- uids whose values are no records}.

local refusal = finish_former(meta_key) or refuse_outdated()
if refusal then return refusal end

local UIDS_NAMED = 8  -- for a log line

local scan = redis.call('HSCAN', online_key, ARGV[10], 'COUNT', ARGV[11])
local found, damaged = {}, {}
for i = 1, #scan[2], 2 do
  local uid = scan[2][i]
  read[uid] = scan[2][i + 1]
  found[uid] = read_record(uid)
  if not (found[uid] and is_indexable(uid, found[uid])) and #damaged < UIDS_NAMED then damaged[#damaged + 1] = uid end
end
local restored = restore_index(found)
return carry_out(meta_key, {})
  or {cmsgpack.pack({status = 'ok', cursor = scan[1], restored = restored, damaged = damaged}), history}
