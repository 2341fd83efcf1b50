-- requires: effects shard refuse_outdated record_cache session_index
-- Restores the index of sessions by node for some of the users online: one bounded call of a walk over all of them.
--
-- KEYS and ARGV 1-9: see lib/shard.lua. ARGV
--   10 cursor of HSCAN over `online`, "0" first
--   11 approximate number of users to read; fewer if their records are large
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when refused (history, fenced,
-- unknown, as in apply), else {status = "ok", cursor, restored = number of sessions that the index lacked, damaged = some
-- uids whose values are no records}.

local cursor, users_left = ARGV[10], tonumber(ARGV[11])

local refusal = finish_former(meta_key) or refuse_outdated()
if refusal then return refusal end

local UIDS_NAMED = 8  -- for a log line
local USERS_A_SCAN = 32  -- the largest records of so many have 6 MB

local room = RECORD_BYTES
local found, damaged = {}, {}
repeat
  local scan = redis.call('HSCAN', online_key, cursor, 'COUNT', USERS_A_SCAN)
  cursor, users_left = scan[1], users_left - USERS_A_SCAN
  for i = 1, #scan[2], 2 do
    local uid = scan[2][i]
    read[uid], room = scan[2][i + 1], room - #scan[2][i + 1]
    found[uid] = read_record(uid)
    if not (found[uid] and is_indexable(uid, found[uid])) and #damaged < UIDS_NAMED then damaged[#damaged + 1] = uid end
  end
until cursor == '0' or users_left <= 0 or room <= 0
local restored = restore_index(found)
return carry_out(meta_key, {})
  or answer_with({status = 'ok', cursor = cursor, restored = restored, damaged = damaged})
