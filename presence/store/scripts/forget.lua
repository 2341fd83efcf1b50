-- requires: shard record_cache
-- Erases when offline users were last seen, and how they went offline.
--
-- KEYS and ARGV 1-9: see lib/shard.lua (ARGV is not used: the caller is no node). ARGV
--   10... uids
-- Returns [answer, replication id of now]; answer is MessagePack: {online = uids that were skipped,
-- seen = number of users with something erased, last_id}. Entries up to last_id belong to finished online periods
-- of the erased users.

local online, forgotten = {}, 0
for i = 10, #ARGV do
  if read_record(ARGV[i]) then
    online[#online + 1] = ARGV[i]
  else
    redis.call('HDEL', online_key, ARGV[i])  -- a damaged record
    redis.call('HDEL', left_key, ARGV[i])
    forgotten = forgotten + redis.call('ZREM', seen_key, ARGV[i])
  end
end
return {cmsgpack.pack({online = online, seen = forgotten, last_id = last_id()}), history}
