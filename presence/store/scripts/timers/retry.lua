-- Takes back an event that failed: it is handed out again after a pause, or becomes a dead letter.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id   3 due_ms   4 attempt, as it was handed out   5 pause, ms   6 attempts after which it is a dead letter
-- Returns ["ok", 1], or ["ok", 0] if it no longer belongs to the caller.

begin()
local id, due_ms, attempt, pause_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local max_attempts = tonumber(ARGV[6])
allow_without_memory()
local packed, lease_end_ms = redis.call('HGET', work_key, id), redis.call('ZSCORE', leased_key, id)
local entry = claimed_entry(packed, lease_end_ms, due_ms, attempt)
if entry then
  if attempt - given_back(entry) >= max_attempts then
    make_dead_letter(id)
  else
    add_member(leased_key, now_ceil_ms + pause_ms, id)
  end
  commit()
end
return cmsgpack.pack({'ok', entry and 1 or 0})
