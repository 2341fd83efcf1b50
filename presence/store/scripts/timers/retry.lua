-- Takes back an event that was not handled: it is handed out again after a pause, or is a dead letter.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id   3 due_ms   4 attempt, as it was handed out   5 pause, ms   6 attempts, after which it is a dead letter
-- Returns ["ok", 1], or ["ok", 0]: it is not the caller's any more.

local id, due_ms, attempt = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
need_no_memory()
local entry = if_present(redis.call('HGET', work_key, id), redis.call('ZSCORE', leased_key, id), due_ms, attempt)
if entry then
  if attempt - spared(entry) >= tonumber(ARGV[6]) then bury(id) else add(leased_key, from_ms + ARGV[5], id) end
  write_back()
end
return cmsgpack.pack({'ok', entry and 1 or 0})
