-- Takes back events that nobody began to handle: they are due at once, and this attempt does not count.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack, flat: id, due_ms, attempt of each, as they were handed out
-- Returns ["ok", of how many it was still the caller's to say]; of one whose lease has ended it is not.

local items = cmsgpack.unpack(ARGV[2])
local n = 0
need_no_memory()
for i = 1, #items, 3 do
  local id = items[i]
  local until_ms = redis.call('ZSCORE', leased_key, id)
  local entry = if_present(redis.call('HGET', work_key, id), until_ms, items[i + 1], items[i + 2])
  if entry and tonumber(until_ms) > now_ms then
    entry[SPARED] = spared(entry) + 1
    keep(id, entry)
    add(leased_key, now_ms, id)
    n = n + 1
  end
end
count('returned', n)
write_back()
return cmsgpack.pack({'ok', n})
