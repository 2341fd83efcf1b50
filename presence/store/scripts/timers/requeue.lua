-- Schedules dead letters again, with all their attempts, or deletes them.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack: ids   3 delay from now, ms; "" deletes them
-- Returns ["ok", number of those that were dead letters].

begin()
local ids, delay = cmsgpack.unpack(ARGV[2]), ARGV[3]
local n, seen = 0, {}
for _, id in ipairs(ids) do
  if not seen[id] and redis.call('ZSCORE', dead_key, id) then
    n, seen[id] = n + 1, true
    remove_member(dead_key, id)
    local entry = delay ~= '' and read_entry(id)
    if entry then
      entry[1], entry[2], entry[GIVEN_BACK] = now_ceil_ms + delay, 0, nil
      store_entry(id, entry)
      add_to_index(id, entry[1])
    else
      delete_entry(id)
    end
  end
end
commit()
return cmsgpack.pack({'ok', n})
