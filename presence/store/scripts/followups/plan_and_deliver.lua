-- One run of a scheduler: reads new entries of the event stream, plans and cancels follow-ups, and delivers due ones.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id of the scheduler
--   3 lease of the scheduler, ms: for that long no other one needs to run
--   4 "" (the scheduler has no rules and uses those stored last), or MessagePack: [[name, delay in ms, [reasons; none:
--     all], payload]...]
--   5 "1" if this scheduler knows that the shard had a cursor, else ""
--   6 maximum of events to read   7 maximum of follow-ups to deliver   8 approximate maximum of entries in `followups`
--   9 maximum of follow-ups in the shard, 10 of their memory in bytes; others are refused
-- Returns MessagePack: ["busy", ms until another scheduler may run], or ["ok", ms until the next follow-up is due (-1:
-- none), whether another run is needed immediately, then numbers: events read, planned, cancelled, delivered, dropped,
-- refused, gaps found].
--
-- `state`: runner, until_ms: the active scheduler, and the end of its lease; cursor: the last event read; added: number of
-- entries ever added to the stream up to there; start: both, before the first run, see add.lua; rules: ARGV 4; scan, floor_ms: see `scan_for_missed_users`;
-- bytes: the memory of all follow-ups, roughly; recounts: how often it was corrected, see reindex.lua.
--
-- Exactly once: the cursor, planned and delivered follow-ups change in one step, so any number of schedulers may call
-- this, die during a call, and repeat it. Nothing is delivered before all events in the stream were read, so a return that
-- Redis has recorded always comes first. Times are those of entry ids, which this server assigned; if an id is ahead of
-- the clock, the time of reading counts.

-- A user who went offline was last seen at most this long before the event: a long idle time-out, or an outage.
local SEEN_SLACK_MS = 3600000
local SEEN_A_CALL = 200
local CHANGES_A_CALL = 500  -- planned and cancelled, after which a call ends: some 10 ms; the last user may exceed it

local scheduler, lease_ms, own_rules, had_cursor = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5] ~= ''
local max_events, max_delivered, stream_maxlen = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local max_followups, max_bytes = tonumber(ARGV[9]), tonumber(ARGV[10])

local state = redis.call('HMGET', state_key, 'runner', 'until_ms', 'cursor', 'added', 'rules', 'scan', 'floor_ms', 'start')
local left_ms = (tonumber(state[2] or '') or 0) - now_ms

-- Also while another scheduler is active: it may have no rules of its own, and then uses these.
if own_rules ~= '' and own_rules ~= state[5] then will('HSET', state_key, 'rules', own_rules) end

if state[1] and state[1] ~= scheduler and left_ms > 0 and left_ms <= lease_ms then
  raise(carry_out(state_key, {}))
  return cmsgpack.pack({'busy', left_ms})
end

-- The first write needs memory: if Redis is full, it refuses this one and with it the whole run. Later writes are not
-- refused.
will('HSET', state_key, 'runner', scheduler, 'until_ms', digits(now_ms + lease_ms))

local packed_rules = own_rules ~= '' and own_rules or state[5]
local rules = packed_rules and cmsgpack.unpack(packed_rules) or {}
for _, rule in ipairs(rules) do
  local wanted = {}
  for _, reason in ipairs(rule[3]) do wanted[reason] = true end
  rule.applies_to = #rule[3] == 0 and function() return true end or function(reason) return wanted[reason] end
end

local pending, bytes_before = redis.call('HLEN', work_key), followup_bytes()
local tally = {planned = 0, cancelled = 0, delivered = 0, dropped = 0, refused = 0, gaps = 0}

-- Plans the follow-ups of a user who went offline. `reason`: nil if it is unknown.
local function plan(uid, last_seen_ms, event_id, start_ms, reason, code)
  local offline_id, offline_ms = reason and event_id or '', reason and start_ms or 0
  for _, id in ipairs(ids_of(uid)) do
    local followup = read_followup(id)
    if followup and followup[DUE] == ARMED and is_after(event_id, followup[BASE_ID]) then
      followup[BASE_ID], followup[REASON], followup[CODE], followup[OFFLINE_ID] = event_id, reason or '', code, offline_id
      followup[OFFLINE_MS], followup[SEEN] = offline_ms, last_seen_ms
      set_due(id, followup, start_ms + followup[DELAY])
      tally.planned = tally.planned + 1
    end
  end
  for _, rule in ipairs(rules) do
    local id = rule[1] .. ':' .. uid .. ':' .. digits(last_seen_ms)
    if rule.applies_to(reason) and not read_followup(id) then
      if pending < max_followups and bytes_before + added_bytes + memory_of(id, rule[4]) <= max_bytes then
        pending = pending + 1
        add_followup(id, {start_ms + rule[2], 0, rule[4], uid, rule[1], rule[2], event_id, reason or '', code, offline_id,
          offline_ms, last_seen_ms})
        tally.planned = tally.planned + 1
      else
        tally.refused = tally.refused + 1
      end
    end
  end
end

-- Cancels the follow-ups of a user who came online.
local function cancel(uid, event_id)
  tally.cancelled = tally.cancelled + delete_followups(uid, function(_, followup)
    return followup[DUE] ~= ARMED and is_after(event_id, followup[BASE_ID])
  end)
end

local function fields_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

local function apply_event(id, event)
  if event.type == 'online' then
    cancel(event.uid, id)
  elseif event.type == 'offline' then
    -- The ms of an id are rounded down: one more, so that nothing is early by a fraction.
    local start_ms = math.min(ms_of(id), now_ms) + 1
    plan(event.uid, tonumber(event.last_seen_ms) or 0, id, start_ms, event.reason or '', tonumber(event.code) or 0)
  end
end

local info = stream_info()
local cursor, added = state[3], tonumber(state[4] or '')
local floor_ms = tonumber(state[7] or '')
local scan = state[6] and floor_ms and cursor_of(state[6])  -- without its floor, it would plan for all who ever left

-- Notes that entries may have been removed unread: the users whom they were about are searched afterwards.
local function begin_scan()
  tally.gaps = tally.gaps + 1
  scan, floor_ms = '0', (ms_of(cursor)) - SEEN_SLACK_MS
end

-- Whether entries after the cursor were removed; only for a stream that has none up to the cursor.
local function has_gap()
  if not (info.added and added) then return cursor ~= '0-0' end
  return info.added - info.length ~= added  -- if fewer: it is another stream
end

if not cursor then
  -- The first run of a shard begins at the end of the stream, or where the first follow-up was added. But if there was a
  -- cursor before, Redis lost its data, and all entries are new.
  cursor, added = info.last, info.added
  local start, start_added = string.match(state[8] or '', '^(%d+%-%d+) (%d*)$')
  if start and not is_after(start, info.last) then cursor, added = start, tonumber(start_added) end
  if had_cursor then
    cursor, added = '0-0', info.added and info.added - info.length
    tally.gaps = 1
  end
elseif is_after(cursor, info.last) then
  begin_scan()  -- the stream was deleted
  cursor, added = '0-0', info.added and info.added - info.length
elseif is_after(info.last, cursor) and (not info.first or is_after(info.first, cursor)) and has_gap() then
  begin_scan()
  added = info.added and info.added - info.length
end

local function is_at_limit()
  return tally.planned + tally.cancelled >= CHANGES_A_CALL
end

local limit = max_events
local entries = redis.call('XRANGE', events_key, '(' .. cursor, '+', 'COUNT', limit)
local uids = {}
for i, entry in ipairs(entries) do
  entry.event = fields_of(entry[2])
  uids[i] = entry.event.uid or ''  -- a gap has none
end
read_ids_ahead(uids)
local read_n = 0
while read_n < #entries and not is_at_limit() do
  read_n = read_n + 1
  local entry = entries[read_n]
  if entry.event.uid then apply_event(entry[1], entry.event) end
  cursor = entry[1]
end
local is_caught_up = read_n == #entries and read_n < limit
if is_caught_up then
  cursor, added = info.last, info.added
else
  added = added and added + read_n
end

-- After a gap: a user who went offline in it is in `seen` and has no follow-up of that. The reason is unknown, so only
-- rules for all reasons apply, and the delay counts from now. A user last seen less than SEEN_SLACK_MS before the gap may
-- have had the follow-up already: then it comes again under the same id. Users who came back in the gap, or have gone
-- again since, are recognised when the follow-up is due. Nothing is delivered before the scan is complete, so a user whom
-- it visits twice has one follow-up.
local function scan_for_missed_users()
  local found = redis.call('ZSCAN', seen_key, scan, 'COUNT', SEEN_A_CALL)
  for i = 1, #found[2], 2 do
    if is_at_limit() then return end  -- the next run reads the same members again; their ids are known then
    local uid, last_seen_ms = found[2][i], tonumber(found[2][i + 1])
    if last_seen_ms >= floor_ms and redis.call('HEXISTS', online_key, uid) == 0 then
      plan(uid, last_seen_ms, info.last, now_ceil_ms, nil, 0)  -- a follow-up planned already has the same id
    end
  end
  scan = found[1] ~= '0' and found[1]
end

local is_more = not is_caught_up
if is_caught_up and scan then
  scan_for_missed_users()
  is_more = scan and true or false
end

-- Delivers a follow-up, unless its user is online or was meanwhile; returns the number delivered.
local function deliver(followup, id)
  local uid, seen_ms = followup[UID], followup[SEEN]
  local score = seen_ms ~= 0 and redis.call('ZSCORE', seen_key, uid)
  if redis.call('HEXISTS', online_key, uid) == 1 or (score and tonumber(score) ~= seen_ms) then return 0 end
  will('XADD', followups_key, 'MAXLEN', '~', stream_maxlen, '*', 'v', '1', 'id', id, 'name', followup[NAME], 'uid', uid,
    'reason', followup[REASON], 'code', digits(followup[CODE]), 'offline_id', followup[OFFLINE_ID],
    'offline_at_ms', digits(followup[OFFLINE_MS]), 'last_seen_ms', digits(seen_ms), 'due_ms', digits(followup[DUE]),
    'at_ms', digits(now_ms), 'payload', followup[PAYLOAD])
  return 1
end

local next_ms = -1
if is_caught_up and not scan then
  local due = redis.call('ZRANGEBYSCORE', due_key, '-inf', digits(now_ms), 'LIMIT', 0, max_delivered)
  for _, id in ipairs(due) do
    local followup = read_followup(id)
    local is_due = followup and not is_changed[id]  -- otherwise this call has just planned it again
    if is_due then
      local n = deliver(followup, id)
      tally.delivered, tally.dropped = tally.delivered + n, tally.dropped + 1 - n
      delete_followups(followup[UID], function(other) return other == id end)
    end
    if is_due or not followup then delete_followup(id) end  -- also a damaged one, or one that its user's ids lack
  end
  is_more = is_more or #due == max_delivered
end

local stored_state = {'cursor', cursor, 'floor_ms', digits(floor_ms or 0)}
for name, value in pairs({added = added and digits(added), scan = scan or nil}) do
  stored_state[#stored_state + 1] = name
  stored_state[#stored_state + 1] = value
end
will('HSET', state_key, unpack(stored_state))
if not scan and state[6] then will('HDEL', state_key, 'scan') end
if not added and state[4] then will('HDEL', state_key, 'added') end
if state[8] then will('HDEL', state_key, 'start') end

-- Three counts have another name in `counts`, where they must keep it.
for name, field in pairs({planned = 'scheduled', cancelled = 'cancelled', delivered = 'done', dropped = 'dropped',
  refused = 'refused', gaps = 'holes'}) do add_count(field, tally[name]) end
write_followups()

local first = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
if first[2] and first[2] ~= 'inf' then next_ms = math.max(0, tonumber(first[2]) - now_ms) end
return cmsgpack.pack({'ok', next_ms, is_more, read_n, tally.planned, tally.cancelled, tally.delivered, tally.dropped,
  tally.refused, tally.gaps})
