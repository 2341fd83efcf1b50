-- requires: effects shard record_cache session_index
-- Erases when offline users were last seen, and how they went offline.
--
-- KEYS and ARGV 1-9: see lib/shard.lua (ARGV is not used: the caller is no node). ARGV
--   10... uids
-- Returns [answer, replication id of now]; answer is MessagePack: {online = uids that were skipped,
-- seen = number of users with something erased, last_id}. Entries up to last_id belong to finished online periods
-- of the erased users.

local uids = {unpack(ARGV, 10)}

local failure = finish_former(meta_key)
if failure then return failure end

local online, found, forgotten = {}, {}, 0
for _, uid in ipairs(uids) do
  local record = read_record(uid)
  if record then
    online[#online + 1], found[uid] = uid, record
  else
    redis.call('HDEL', online_key, uid)  -- a damaged record
    redis.call('HDEL', left_key, uid)
    forgotten = forgotten + redis.call('ZREM', seen_key, uid)
  end
end
restore_index(found)  -- so that a kick, or the sweep of a dead node, can end their sessions
return carry_out(meta_key, {}) or answer_with({online = online, seen = forgotten, last_id = last_id()})
