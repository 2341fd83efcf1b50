-- Corrects the counted memory of follow-ups after a walk, see reindex.lua; what was added and deleted meanwhile was counted.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 bytes to add   3 `recounts` at the beginning of the walk: if it has changed since, another scheduler has corrected it
-- Returns MessagePack: whether it was corrected.

local bytes_to_add, recounts_before = tonumber(ARGV[2]), tonumber(ARGV[3])

local is_first = recounts() == recounts_before
if is_first then
  added_bytes = bytes_to_add
  will('HSET', state_key, 'recounts', recounts() + 1)
  write_followups()
end
return cmsgpack.pack(is_first)
