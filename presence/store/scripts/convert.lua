-- requires: effects shard traces record_cache news events profile shown_state changes owned
-- Converts a shard of version 1, where the hash of a node also has the sessions that the node owns and, under
-- "<uid>  held", its pending logins. One bounded call of several.
--
-- KEYS and ARGV 1-9: see lib/shard.lua (of ARGV only 4 is used: the caller is no node). ARGV
--   10 the version to convert to
--   11 place to continue at, "" first
--   12 approximate number of fields to read
-- Returns [answer, replication id of now]; answer is MessagePack: {version = that of the shard before the call, place = ""
-- if nothing is left to convert}. Sending a call again changes nothing.

local failure = finish_former(meta_key)
if failure then return failure end

local version, present, ids = redis.call('HGET', meta_key, 'version'), redis.call('HGETALL', traces_key), {}
for i = 1, #present, 2 do ids[#ids + 1] = present[i] end
table.sort(ids)
version = version or (#ids > 0 and '1' or ARGV[10])
if version ~= '1' then return {cmsgpack.pack({version = version, place = ''}), history} end

local at, cursor = string.match(ARGV[11], '^(%d+) (%d+)$')
at = tonumber(at or 1)
local id = ids[at]
-- Should its process still run, it must not write in the form of version 1 any more. The pending logins of a fenced node
-- count for nothing.
fence(id)
drop_pending_logins(id)
local key, former = node_prefix .. id, {}
local scan = redis.call('HSCAN', key, cursor or '0', 'COUNT', ARGV[12])
for i = 1, #scan[2], 2 do
  local field = scan[2][i]
  if string.find(field, ' ', 1, true) then former[field] = false end
  if string.find(field, '^%S+ %S*$') then set_owned(id, field, scan[2][i + 1]) end
end
write_back()
write_traces()
write_all(key, former, 'HSET', 'HDEL')

if scan[1] == '0' then at = at + 1 end
if not ids[at] then will('HSET', meta_key, 'version', ARGV[10]) end
return carry_out_changes() or {cmsgpack.pack({version = version, place = ids[at] and at .. ' ' .. scan[1] or ''}), history}
