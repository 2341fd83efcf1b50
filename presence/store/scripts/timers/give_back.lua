-- Returns events that were not begun: they are due immediately, and this attempt does not count.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack, flat: id, due_ms, attempt of each, as they were handed out
-- Returns ["ok", number of those that still belonged to the caller]; an event whose lease has ended does not.

begin()
local items = cmsgpack.unpack(ARGV[2])
local n = 0
allow_without_memory()
for i = 1, #items, 3 do
  local id = items[i]
  local lease_end_ms = redis.call('ZSCORE', leased_key, id)
  local entry = claimed_entry(redis.call('HGET', work_key, id), lease_end_ms, items[i + 1], items[i + 2])
  if entry and tonumber(lease_end_ms) > now_ms then
    entry[GIVEN_BACK] = given_back(entry) + 1
    store_entry(id, entry)
    add_member(leased_key, now_ms, id)
    n = n + 1
  end
end
add_count('returned', n)
commit()
return cmsgpack.pack({'ok', n})
