-- The records of users who may be in rooms, for the comparison of members with them.
--
-- KEYS 1 online   2 events   3 rooms:state   4 absent
-- ARGV uids, at most VALUES_A_CALL
-- Returns MessagePack ["<id of the last entry> <epoch>", record ("": none, or no session is in a room)...]. What the records say
-- is true after that entry, or an earlier one.

local online_key, state_key, uids = KEYS[1], KEYS[3], ARGV

local records = redis.call('HMGET', online_key, unpack(uids))
local found = {last_of(events_key) .. ' ' .. (redis.call('HGET', state_key, 'epoch') or '')}
for i, record in ipairs(records) do
  found[i + 1] = record and string.find(record, '"rooms":', 1, true) and record or ''
end
return cmsgpack.pack(found)
