-- Lets dead letters live again, as if they had never been handed out, or forgets them.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack: ids   3 delay from now, ms; "" forgets them
-- Returns ["ok", how many of them were dead letters].

local ids, delay = cmsgpack.unpack(ARGV[2]), ARGV[3]
local n = 0
for _, id in ipairs(ids) do
  if redis.call('ZREM', dead_key, id) == 1 then
    n = n + 1
    local entry = delay ~= '' and read(id)
    if entry then
      entry[1], entry[2], entry[SPARED] = from_ms + delay, 0, nil
      keep(id, entry)
      place(id, entry[1])
    else
      forget(id)
    end
  end
end
write_back()
return cmsgpack.pack({'ok', n})
