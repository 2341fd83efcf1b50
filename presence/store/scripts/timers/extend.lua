-- Restarts leases.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack, flat: id, due_ms, attempt of each, as they were handed out
--   3 lease, ms
-- Returns ["ok", number of those that still belong to the caller].

begin()
local items, lease_ms = cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3])
local n = 0
allow_without_memory()
for i = 1, #items, 3 do
  local id = items[i]
  local packed, lease_end_ms = redis.call('HGET', work_key, id), redis.call('ZSCORE', leased_key, id)
  if claimed_entry(packed, lease_end_ms, items[i + 1], items[i + 2]) then
    add_member(leased_key, now_ms + lease_ms, id)
    n = n + 1
  end
end
commit()
return cmsgpack.pack({'ok', n})
