-- One turn: reads what is new in the stream of events, plans and cancels follow-ups, and tells those that are due.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 the runner's id
--   3 ms for which nobody else need turn
--   4 "" (the runner has no rules: those stand that the last one with rules brought), or MessagePack: [[name, after_ms,
--     [reasons, none: all], payload]...]
--   5 "1" if this runner has seen the shard have a cursor, else ""
--   6 events read at most   7 follow-ups told at most   8 entries that `told` is capped to, roughly
--   9 follow-ups that there may be; beyond, they are refused
-- Returns MessagePack: ["busy", ms until another may turn], or ["ok", ms until the next is due (-1: none is),
-- whether there is more to do at once, then how many: events read, planned, cancelled, told, dropped, refused,
-- holes found].
--
-- `state`: runner, until_ms: who turns, and how long nobody else need; cursor: the last event that was read;
-- added: how many entries the stream ever had at that point; rules: ARGV 4; scan, floor_ms: see `look_for_missed`.
--
-- Exactly once: the cursor, the plans and what is told change in one step, so any number of runners may call this,
-- die while they do, and call it again. Nothing is told before all events that the stream has are read, so a
-- return that Redis has taken always comes first. Times are those of entry ids, which this server gave; if such an
-- id is ahead of its clock, the moment of reading counts.

-- A user who went offline was last seen up to so long before his event: an idle time-out of his own, or an outage.
local SEEN_SLACK_MS = 3600000
local SEEN_A_CALL = 200
local CHANGES_A_CALL = 500  -- plans and cancellations, after which a call ends: some 10 ms; one user more may exceed it

local runner, lease_ms = ARGV[2], tonumber(ARGV[3])
local state = redis.call('HMGET', state_key, 'runner', 'until_ms', 'cursor', 'added', 'rules', 'scan', 'floor_ms')
local left_ms = (tonumber(state[2] or '') or 0) - now_ms
if state[1] and state[1] ~= runner and left_ms > 0 and left_ms <= lease_ms then
  return cmsgpack.pack({'busy', left_ms})
end

-- The refusal of a user who may not call all of this: a call that Redis stops half-way would tell again with each
-- retry. (Before Redis 7 nobody can know beforehand.)
for _, command in ipairs(redis.acl_check_cmd and {
  {'XADD', told_key}, {'HSET', state_key}, {'HDEL', state_key}, {'ZADD', due_key}, {'ZREM', due_key},
  {'HINCRBY', counts_key}, {'HEXISTS', online_key}, {'ZSCORE', seen_key}, {'ZSCAN', seen_key}, {'XRANGE', events_key},
} or {}) do
  if not redis.acl_check_cmd(unpack(command)) then
    return redis.error_reply('NOPERM this user may not call ' .. table.concat(command, ' '))
  end
end

-- A write that needs memory goes first: a full server refuses it, and so the whole turn. Later ones are never
-- refused.
redis.call('HSET', state_key, 'runner', runner, 'until_ms', digits(now_ms + lease_ms))

local packed_rules = ARGV[4] ~= '' and ARGV[4] or state[5]
if ARGV[4] ~= '' and ARGV[4] ~= state[5] then redis.call('HSET', state_key, 'rules', ARGV[4]) end
local rules = packed_rules and cmsgpack.unpack(packed_rules) or {}
for _, rule in ipairs(rules) do
  local wanted = {}
  for _, reason in ipairs(rule[3]) do wanted[reason] = true end
  rule.takes = #rule[3] == 0 and function() return true end or function(reason) return wanted[reason] end
end

local held, held_max = redis.call('HLEN', work_key), tonumber(ARGV[9])
local tally = {planned = 0, cancelled = 0, told = 0, dropped = 0, refused = 0, holes = 0}

-- Plans what follows when a user has gone. reason: nil where only that he is gone is known.
local function went(uid, last_seen_ms, event_id, from, reason, code)
  local offline_id, offline_ms = reason and event_id or '', reason and from or 0
  for _, id in ipairs(ids_of(uid)) do
    local item = item_of(id)
    if item and item[DUE] == ARMED and is_after(event_id, item[PLACE]) then
      item[PLACE], item[REASON], item[CODE], item[OFFLINE_ID] = event_id, reason or '', code, offline_id
      item[OFFLINE_MS], item[SEEN] = offline_ms, last_seen_ms
      due_at(id, item, from + item[AFTER])
      tally.planned = tally.planned + 1
    end
  end
  for _, rule in ipairs(rules) do
    local id = rule[1] .. ':' .. uid .. ':' .. digits(last_seen_ms)
    if rule.takes(reason) and not item_of(id) then
      if held < held_max then
        held = held + 1
        enter(id, {from + rule[2], 0, rule[4], uid, rule[1], rule[2], event_id, reason or '', code, offline_id,
          offline_ms, last_seen_ms})
        tally.planned = tally.planned + 1
      else
        tally.refused = tally.refused + 1
      end
    end
  end
end

local function came(uid, event_id)
  tally.cancelled = tally.cancelled + leave(uid, function(_, item)
    return item[DUE] ~= ARMED and is_after(event_id, item[PLACE])
  end)
end

local function fields_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

local function take_event(id, event)
  if event.type == 'online' then
    came(event.uid, id)
  elseif event.type == 'offline' then
    -- An id has whole ms, rounded down; one more, so that nothing is early by a part of one.
    local from = math.min(ms_of(id), now_ms) + 1
    went(event.uid, tonumber(event.last_seen_ms) or 0, id, from, event.reason or '', tonumber(event.code) or 0)
  end
end

local info = stream_info()
local cursor, added = state[3], tonumber(state[4] or '')
local scan, floor_ms = state[6], tonumber(state[7] or '')

-- Entries may be gone that nobody has read: after them it is looked for whom they were about.
local function note_hole()
  tally.holes = tally.holes + 1
  scan, floor_ms = '0', (ms_of(cursor)) - SEEN_SLACK_MS
end

-- Whether entries after the cursor are gone; asked where the stream has none up to there any more.
local function is_hole()
  if not (info.added and added) then return cursor ~= '0-0' end
  return info.added - info.length ~= added  -- fewer: it is another stream
end

if not cursor then
  -- The first turn ever begins at the present end. But if there was a cursor before, Redis lost what it had, and
  -- all that is there is new.
  cursor, added = info.last, info.added
  if ARGV[5] ~= '' then
    cursor, added = '0-0', info.added and info.added - info.length
    tally.holes = 1
  end
elseif is_after(cursor, info.last) then
  note_hole()  -- somebody deleted the stream
  cursor, added = '0-0', info.added and info.added - info.length
elseif is_after(info.last, cursor) and (not info.first or is_after(info.first, cursor)) and is_hole() then
  note_hole()
  added = info.added and info.added - info.length
end

local function is_enough()
  return tally.planned + tally.cancelled >= CHANGES_A_CALL
end

local limit = tonumber(ARGV[6])
local page = redis.call('XRANGE', events_key, '(' .. cursor, '+', 'COUNT', limit)
local uids = {}
for i, entry in ipairs(page) do
  entry.event = fields_of(entry[2])
  uids[i] = entry.event.uid or ''  -- of a gap
end
read_ids(uids)
local read_n = 0
while read_n < #page and not is_enough() do
  read_n = read_n + 1
  local entry = page[read_n]
  if entry.event.uid then take_event(entry[1], entry.event) end
  cursor = entry[1]
end
local is_caught_up = read_n == #page and read_n < limit
if is_caught_up then
  cursor, added = info.last, info.added
else
  added = added and added + read_n
end

-- After a hole: who went offline in it stands in `seen` and has no follow-up of that. Why he went is not known, so
-- only rules for all reasons apply, and the time counts from now. He may have had his follow-up before the hole,
-- if that was less than SEEN_SLACK_MS ago: then it comes again under the same id. Who came back in the hole, or
-- has gone again since, is found when his follow-up is due. Nothing is told before all were looked at, so those
-- that are looked at twice have theirs once.
local function look_for_missed()
  local found = redis.call('ZSCAN', seen_key, scan, 'COUNT', SEEN_A_CALL)
  for i = 1, #found[2], 2 do
    if is_enough() then return end  -- the same once more: what is planned by then is known
    local uid, last_seen_ms = found[2][i], tonumber(found[2][i + 1])
    if last_seen_ms >= floor_ms and redis.call('HEXISTS', online_key, uid) == 0 then
      went(uid, last_seen_ms, info.last, from_ms, nil, 0)  -- what is planned already has the same id
    end
  end
  scan = found[1] ~= '0' and found[1]
end

local is_more = not is_caught_up
if is_caught_up and scan then
  look_for_missed()
  is_more = scan and true or false
end

-- Tells a follow-up, unless its user is back or has been meanwhile; returns how many were told.
local function tell(item, id)
  local uid, seen_ms = item[UID], item[SEEN]
  local score = seen_ms ~= 0 and redis.call('ZSCORE', seen_key, uid)
  if redis.call('HEXISTS', online_key, uid) == 1 or (score and tonumber(score) ~= seen_ms) then return 0 end
  redis.call('XADD', told_key, 'MAXLEN', '~', ARGV[8], '*', 'v', '1', 'id', id, 'name', item[NAME], 'uid', uid,
    'reason', item[REASON], 'code', digits(item[CODE]), 'offline_id', item[OFFLINE_ID],
    'offline_at_ms', digits(item[OFFLINE_MS]), 'last_seen_ms', digits(seen_ms), 'due_ms', digits(item[DUE]),
    'at_ms', digits(now_ms), 'payload', item[PAYLOAD])
  return 1
end

local next_ms = -1
if is_caught_up and not scan then
  local told_max = tonumber(ARGV[7])
  local due = redis.call('ZRANGEBYSCORE', due_key, '-inf', digits(now_ms), 'LIMIT', 0, told_max)
  for _, id in ipairs(due) do
    local item = item_of(id)
    local is_due = item and not is_touched[id]  -- else this call has just planned it anew
    if is_due then
      local n = tell(item, id)
      tally.told, tally.dropped = tally.told + n, tally.dropped + 1 - n
      leave(item[UID], function(other) return other == id end)
    end
    if is_due or not item then take_out(id) end  -- also one that is damaged, or not in its user's list
  end
  is_more = is_more or #due == told_max
end

local stored = {'cursor', cursor, 'floor_ms', digits(floor_ms or 0)}
for name, value in pairs({added = added and digits(added), scan = scan or nil}) do
  stored[#stored + 1] = name
  stored[#stored + 1] = value
end
redis.call('HSET', state_key, unpack(stored))
if not scan and state[6] then redis.call('HDEL', state_key, 'scan') end
if not added and state[4] then redis.call('HDEL', state_key, 'added') end

for name, field in pairs({planned = 'scheduled', cancelled = 'cancelled', told = 'done', dropped = 'dropped',
  refused = 'refused', holes = 'holes'}) do count(field, tally[name]) end
write_all()

local first = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
if first[2] and first[2] ~= 'inf' then next_ms = math.max(0, tonumber(first[2]) - now_ms) end
return cmsgpack.pack({'ok', next_ms, is_more, read_n, tally.planned, tally.cancelled, tally.told, tally.dropped,
  tally.refused, tally.holes})
