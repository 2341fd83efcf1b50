-- requires: shard records
-- Forgets of users who are offline when they were last seen.
--
-- KEYS and ARGV 1-9: see lib/shard.lua (none of ARGV is looked at: the caller is no node). ARGV
--   10... uids
-- Returns [answer, replication id of now]; answer is MessagePack: {online = uids of which nothing was forgotten,
-- seen = number of those of whom something was, last_id}. Entries up to last_id belong to online periods that
-- have ended, for everybody who was forgotten.

local online, forgotten = {}, 0
for i = 10, #ARGV do
  if read_record(ARGV[i]) then
    online[#online + 1] = ARGV[i]
  else
    redis.call('HDEL', online_key, ARGV[i])  -- a damaged record
    forgotten = forgotten + redis.call('ZREM', seen_key, ARGV[i])
  end
end
return {cmsgpack.pack({online = online, seen = forgotten, last_id = last_id()}), history}
