-- requires: effects shard refuse_outdated peer_traces
-- Fences another node in one shard: no writes under its id are accepted any more.
--
-- KEYS and ARGV 1-9: see lib/shard.lua. ARGV
--   10 the other node's id
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when the caller is refused
-- (history, fenced, unknown, as in apply), else {status = "ok"}. Fencing again changes nothing.

local other = ARGV[10]

local refusal = finish_former(meta_key) or refuse_outdated()
if refusal then return refusal end
fence(other)
write_peer_traces()
return carry_out(meta_key, {}) or answer_with({status = 'ok'})
