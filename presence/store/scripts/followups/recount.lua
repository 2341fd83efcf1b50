-- Corrects the counted memory of follow-ups after a walk, see reindex.lua; what was added and deleted meanwhile was counted.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 bytes to add   3 `recounts` at the beginning of the walk: if it has changed since, another scheduler has corrected it
-- Returns MessagePack: whether it was corrected.

local is_first = recounts() == tonumber(ARGV[3])
if is_first then
  added_bytes = tonumber(ARGV[2])
  will('HSET', state_key, 'recounts', recounts() + 1)
  write_followups()
end
return cmsgpack.pack(is_first)
