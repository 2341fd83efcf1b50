-- Hands out events by name, those whose time has come: whoever asks was told so, and may be the second or too early.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack: ids, each once   3 lease, ms   4 attempts, after which an event is a dead letter
-- Returns as due.lua; `is_more`: not all were looked at, for the answer is large.

local ids, lease_ms, attempts_max = cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

need_no_memory()

local function ready(key)
  local found = {}
  for i, score in ipairs(redis.call('ZMSCORE', key, unpack(ids))) do
    if score and tonumber(score) <= now_ms then found[#found + 1] = ids[i] end
  end
  return found
end

local is_all = true
for _, key in ipairs({leased_key, due_key}) do is_all = is_all and hand_out(key, ready(key), lease_ms, attempts_max) end
write_back()
return cmsgpack.pack({'ok', now_ms, not is_all, handed})
