-- Hands out those of the given events that are due: a caller that was notified of them may be late or too early.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 MessagePack: ids, each once   3 lease, ms   4 attempts after which an event is a dead letter
--   5 claim_key   6 number of the call, see prelude.lua
-- Returns as due.lua; `is_more`: it stopped early because the reply is large.

begin()
local ids, lease_ms, attempts_max = cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local claim_key, number = ARGV[5], tonumber(ARGV[6])

allow_without_memory()
if hand_out_again(claim_key, number, lease_ms) then
  commit()
  return cmsgpack.pack({'ok', now_ms, true, handed_out})
end

local function due_ids(key)
  local found = {}
  for i, score in ipairs(redis.call('ZMSCORE', key, unpack(ids))) do
    if score and tonumber(score) <= now_ms then found[#found + 1] = ids[i] end
  end
  return found
end

local is_all = true
for _, key in ipairs({leased_key, due_key}) do
  is_all = is_all and hand_out(key, due_ids(key), lease_ms, attempts_max)
end
note_claim(claim_key, number, lease_ms)
commit()
return cmsgpack.pack({'ok', now_ms, not is_all, handed_out})
