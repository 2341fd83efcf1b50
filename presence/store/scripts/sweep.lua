-- requires: effects shard refuse_outdated record_cache entries changes owned_sessions
-- Ends the sessions that a fenced node owns in one shard. One bounded call of several.
--
-- KEYS and ARGV 1-9: see lib/shard.lua. ARGV
--   10 the fenced node's id
--   11 cursor of `scan_owned`, "0" first
--   12 approximate number of fields to read
--   13 ms since the caller first saw the fence: a session with a longer time-out is left for later
--   14 latest ms at which its sessions can have been seen; 0: unknown, then when each arrived
--   15 ms for which fence and counter are kept after the last session
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when the caller is refused
-- (history, fenced, unknown, as in apply) or the other is not fenced (unfenced), else {status = "ok", last_id,
-- told (as in apply), cursor, ended = number of sessions, wait_ms = until the next session left for later is due;
-- 0: none was left, done = whether the node owns nothing any more}. An end compares session, node and generation, so two
-- sweepers harm nothing.

local dead, cursor, fields, waited_ms = ARGV[10], ARGV[11], ARGV[12], tonumber(ARGV[13])
local last_renewal_ms, tombstone_ms = tonumber(ARGV[14]), ARGV[15]

local refusal = finish_former(meta_key) or refuse_outdated()
if refusal then return refusal end

if not is_fenced(dead) then return refuse('unfenced', 0) end

node = dead  -- in the events
local ended, wait_ms = 0, 0

local function sweep(field, uid, device, owned_generation, session)
  local record = read_record(uid)
  local present = record and record.sessions[device]
  local is_its = present and present.session == session and present.node == dead
  local left_ms = is_its and (tonumber(present.idle_timeout_ms) or 0) - waited_ms or 0
  if left_ms > 0 then
    if wait_ms == 0 or left_ms < wait_ms then wait_ms = left_ms end
    return
  end
  local latest_ms = last_renewal_ms
  if is_its and latest_ms == 0 then latest_ms = present.arrived_ms end
  if end_owned(dead, field, uid, device, owned_generation, session, latest_ms) then ended = ended + 1 end
end

local next_cursor = scan_owned(dead, cursor, fields, sweep)
-- All changes of what the dead node owns are removals of fields that the scan has found.
local done = redis.call('HLEN', sessions_key(dead)) == count_names(owned[dead])
collect_writes()
if done then
  will('HDEL', peer_traces_key, dead)
  drop_pending_logins(dead)
  will('PEXPIRE', node_prefix .. dead, tombstone_ms)
end
return carry_out_effects() or answer_with({status = 'ok', last_id = highest_id, told = event_counts, cursor = next_cursor,
  ended = ended, wait_ms = wait_ms, done = done})
