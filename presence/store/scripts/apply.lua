-- requires: effects shard peer_traces record_cache notices entries profile shown_state events changes sessions
-- What comes from which part ("from"):
-- from effects: finish_former privacy_in_use will
-- from shard: count generation is_fenced meta_key node node_key node_prefix now_ms opened_under
-- from shard: peer_traces_key refuse replication_id sessions_key
-- from peer_traces: fence peer_traces set_peer_trace write_peer_traces
-- from record_cache: owned read_ahead read_record record_text records
-- from notices: notify
-- from entries: add_entry carry_out_effects digits event_counts highest_id raise_floor read_watchers
-- from profile: show_as
-- from shown_state: apply_privacy is_before
-- from events: CODE_RETURNED go_offline go_online privacy_of_offline
-- from changes: PLAIN_RECORD UNCERTAIN_LOGIN_MS add_pending_login collect_writes drop_pending_logins
-- from changes: end_without_record hand_to_pending_login lateness nodes_with_pending_logins remove_pending_logins
-- from changes: remove_session set_owned stay_online trim_seen write_record
-- from sessions: put_session update_session
-- Applies one numbered batch of one node to one shard: all of it or, when refused, nothing of it. First it finishes a former
-- call that was cut short.
--
-- KEYS and ARGV 1-9: see lib/shard.lua. ARGV
--   10 n, the batch's number in its generation, from 1
--   11 items, MessagePack: one flat array, of ITEM_VALUES values for each item, in order
--      "login", "register", "reclaim" (a registration after Redis lost recent writes), "update" or "hold" (a login that
--      will follow: see pending logins in lib/changes.lua), uid, device, session, code, at_ms, age_ms, idle_timeout_ms,
--      profile (see `show_as`). After "update" comes what it changes of the user's privacy, if it does, such as "+i-l"
--      "end" or "restore" (an end that may have to write its whole online period), uid, device, session, code, at_ms,
--      last_seen_ms, age_ms, grace_ms
--      where code, at_ms and last_seen_ms are digits, and grace_ms is digits or ""
--   12 "" or, in the opening batch, MessagePack: {dropped, from_ms, to_ms, floor, before, version}. `dropped`: skipped
--      changes (0: no gap entry). `floor`: highest entry id that the node has seen. `before`: the node id of the
--      caller in its previous generation. `version`: of the data, as the node knows it
--   13 reasons, MessagePack: {code: reason} of the codes that occur
--   14 "complete" if with this batch all live sessions of the node are registered under this generation, or pending;
--      otherwise ""
--   15 most sessions of a user
--   16 sessions to end if there are more: "oldest" or "newest"
--   17 ms that this shard's clock had surely reached when the call was sent; 0: unknown
--   18 "" or MessagePack: {class of device = {most sessions, "oldest" or "newest"}}
--   19 "devices" or "", see lib/shard.lua
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when refused, else
--   {status = "ok", last_id, superseded = [[uid, device, session, may return]...], told = event counts: type, code,
--   number... of the entries written}, and for an opening batch `traces` (as in probe) and `trail` = batch history: [[node,
--   generation, n, superseded and event counts of that n]...], the counters of the previous generations, the latest first.
--
-- The call counts as applied from its first write on, see lib/effects.lua; its number and reply are the last.
--
-- Refusals, in this order: history (another replication history), fenced, unknown (no such counter or
-- generation), gap (a number is missing), heavy (the records of its users are too large together; `fitting` = how many of
-- its items, from the first on, are not). A number applied before gets its reply again and changes nothing;
-- if that is damaged, unknown.
--
-- Two logins of a device. A device has one session, so a login may find another one on record. Of each it is known, by this
-- shard's clock, when it was at the latest (its age before its call arrived: `login_ms`) and at the earliest (its age before
-- its call was sent: `late_ms` before that, on record if it is long). `order_of` compares two logins, and this happens to the
-- one of this call:
--
--              earlier          unknown                                        later
--   login      yields for good  yields if it waited and was, at the earliest,  wins for good
--                               before the other; otherwise wins
--   register   yields           yields                                         yields
--   reclaim    yields           wins if far later, otherwise yields            wins for good if far later, otherwise yields
--   hold       takes over       takes over                                     does not
--
-- Unless it is for good, the client of the session that lost may return, and its next login is surely later. A session of the
-- calling node loses to all, because an outbox is in order, and so does one of a fenced node. A registration yields, because
-- the ages of a machine that slept are too small. A reclaim may find a session whose end Redis has lost; its node does not
-- know this shard's clock yet, so it is far later if it would be even with a call that took UNCERTAIN_LOGIN_MS. A hold is
-- compared with the end of the user's last session, see `hand_to_pending_login`.

local LATE_LOGIN_MS = 1000     -- a login this old waited in an outbox: the record may have a newer one
local CLOCK_ERROR = 0.05       -- of ages by the clock of a node, far above any real error
local ITEM_VALUES = 9
local EXACT_DIGITS = 16        -- of EXACT, see lib/shard.lua; a record with a longer number goes to the parser
local BATCH_HISTORY_LIMIT = 4  -- lost answers of openings in a row

-- Returns, of a stored reply and `trail`, what has their form: whether the reply can be answered again, its `superseded` and
-- event counts, and the rows of the batch history. Its functions are rarely needed, and each definition takes time in each
-- call.
local function read_stored(reply, trail)
  local function unpacked(text)
    local ok, value = pcall(cmsgpack.unpack, text or '')
    return ok and type(value) == 'table' and value or {}
  end

  -- Whether a value is an array of rows, of which each value is of a type in `types`.
  local function has_rows(value, types)
    if type(value) ~= 'table' then return false end
    for _, row in pairs(value) do
      for i, wanted in ipairs(types) do
        if type(row) ~= 'table' or type(row[i]) ~= wanted then return false end
      end
      if #row ~= #types then return false end
    end
    return true
  end

  local function is_superseded(value)
    return has_rows(value, {'string', 'string', 'string', 'boolean'})
  end

  local function is_event_counts(value)
    if type(value) ~= 'table' or #value % 3 ~= 0 then return false end
    for i = 1, #value, 3 do
      if type(value[i]) ~= 'string' or type(value[i + 2]) ~= 'number'
          or not string.find(tostring(value[i + 1]), '^%d+$') then return false end
    end
    return true
  end

  local stored, rows = unpacked(reply), {}
  local superseded = is_superseded(stored.superseded) and stored.superseded
  local event_counts = is_event_counts(stored.told) and stored.told
  for _, row in ipairs(unpacked(trail)) do
    if type(row) == 'table' and type(row[1]) == 'string' and type(row[2]) == 'number' and type(row[3]) == 'number'
        and is_superseded(row[4]) and is_event_counts(row[5]) then
      rows[#rows + 1] = row
    end
  end
  local is_sound = stored.status == 'ok' and type(stored.last_id) == 'string' and superseded and event_counts
  return is_sound, superseded or {}, event_counts or {}, rows
end

local n, packed_items, packed_reasons, is_complete = tonumber(ARGV[10]), ARGV[11], ARGV[13], ARGV[14] == 'complete'
local opening = ARGV[12] ~= '' and cmsgpack.unpack(ARGV[12])
local max_sessions, session_policy, sent_ms = tonumber(ARGV[15]), ARGV[16], tonumber(ARGV[17])
local class_limits = ARGV[18] ~= '' and cmsgpack.unpack(ARGV[18])
local is_sending_known = sent_ms > 0 and sent_ms <= now_ms  -- otherwise it is unknown, or the clock was set back
local reached_ms = is_sending_known and sent_ms or now_ms  -- ages are as of this time at the earliest, if it is known
local late_ms = lateness(now_ms - reached_ms)  -- of the logins of this call: Redis was stopped, or the node slept

local failure = finish_former(meta_key)
if failure then return failure end

local counter = redis.call('HMGET', node_key, 'gen', 'n', 'reply', 'fence', 'complete')
local present_generation, last_n = count(counter[1]), count(counter[2])

if opened_under ~= replication_id and not (opening and opened_under == '') then
  return refuse('history', present_generation)
end
if counter[4] then return refuse('fenced', present_generation) end
local opens = opening and generation > present_generation
if not opens and generation ~= present_generation then return refuse('unknown', present_generation) end
if opens then last_n = 0 end
if n <= last_n then
  -- Without its reply the batch cannot be answered: the caller opens another generation, and compares.
  if not read_stored(counter[3]) then return refuse('unknown', present_generation) end
  return {counter[3], replication_id}
end
if n > last_n + 1 then return refuse('gap', present_generation) end
local version = opens and redis.call('HGET', meta_key, 'version')
if version and version ~= opening.version then
  return redis.error_reply('the data of this shard has version ' .. version .. ', not ' .. opening.version)
end

local superseded = {}

-- Returns when a session of a record logged in at the earliest.
local function earliest_login_ms(session)
  return session.login_ms - (session.late_ms or 0)
end

-- Returns how the login of a session of this call is to another one: 'earlier', 'later' or 'unknown'. The clock of each node
-- may be wrong by CLOCK_ERROR. If the time of sending is unknown, calls that came soon took less than UNCERTAIN_LOGIN_MS.
local function order_of(login, other)
  local age_ms, other_age_ms = now_ms - login.login_ms, other.arrived_ms - other.login_ms
  local clock_error_ms = 1 + CLOCK_ERROR * (age_ms + other_age_ms)
  if is_sending_known and reached_ms - age_ms - other.login_ms > clock_error_ms then return 'later' end
  local came_soon = age_ms <= UNCERTAIN_LOGIN_MS and other_age_ms <= UNCERTAIN_LOGIN_MS
  if came_soon and earliest_login_ms(login) - other.login_ms >= UNCERTAIN_LOGIN_MS then return 'later' end
  if earliest_login_ms(other) - login.login_ms > UNCERTAIN_LOGIN_MS then return 'earlier' end
  return 'unknown'
end

-- Returns whether a login wins over `present`, another session of its device, and whether the client of the one that loses
-- may return; nil: no node has to tell it. See the table above.
local function outcome_of(op, login, present)
  if present.node == node or is_fenced(present.node) then return true end
  if op == 'register' then return false, true end
  local order, earliest_ms, wins = order_of(login, present), earliest_login_ms(login)
  if op == 'login' then
    wins = now_ms - earliest_ms <= LATE_LOGIN_MS or earliest_ms >= earliest_login_ms(present)
  else  -- a reclaim wins if it is far later
    wins = earliest_ms - present.login_ms > UNCERTAIN_LOGIN_MS + CLOCK_ERROR * (now_ms - login.login_ms)
  end
  if wins then return true, order ~= 'later' end
  return false, op == 'reclaim' or order ~= 'earlier'
end

local crowded = {}  -- users with another session than before, in order, and by uid the classes of these sessions

local function note_another_session(uid, class)
  if not crowded[uid] then crowded[#crowded + 1], crowded[uid] = uid, {} end
  local classes = crowded[uid]
  classes[#classes + 1] = class
end

-- After all items: the sessions that this call ends are gone by then, and do not count.
local function enforce_session_limits()
  -- Whether a session surely lives: its node is not fenced, and has registered it in its present generation.
  local function is_known(session)
    local counter = redis.call('HMGET', node_prefix .. session.node, 'gen', 'fence')
    return count(counter[1]) == session.generation and not counter[2]
  end

  -- Notifies nodes of sessions above a limit of a user. Repeated notices until they have ended are harmless.
  -- A session that may have ended while its node was disconnected counts when that node registers it. `victims`: devices
  -- whose sessions are above another limit, and do not count; those of this one are added.
  local function enforce_session_limit(uid, sessions, victims, most, policy, class)
    local names, devices = {}, 0
    local function counts(device, session) return (not class or session.class == class) and not victims[device] end
    for device, session in pairs(sessions) do
      if counts(device, session) then devices = devices + 1 end
    end
    if devices <= most then return end
    for device, session in pairs(sessions) do
      if counts(device, session) and is_known(session) then names[#names + 1] = device end
    end
    table.sort(names, function(device, other)
      if sessions[device].login_ms ~= sessions[other].login_ms then
        return sessions[device].login_ms < sessions[other].login_ms
      end
      return is_before(device, other)
    end)
    local first = policy == 'newest' and most + 1 or 1
    for i = first, first + #names - most - 1 do
      local victim = sessions[names[i]]
      victims[names[i]] = true
      notify(victim.node, {type = 'limited', uid = uid, device = names[i], session = victim.session, by = node,
        return_allowed = policy == 'newest'})
    end
  end

  for _, uid in ipairs(crowded) do
    local record, victims = read_record(uid), {}
    if record then
      for _, class in ipairs(class_limits and crowded[uid] or {}) do
        local limit = class_limits[class]
        if limit then enforce_session_limit(uid, record.sessions, victims, limit[1], limit[2], class) end
      end
      enforce_session_limit(uid, record.sessions, victims, max_sessions, session_policy)
    end
  end
end

local function add_session(op, change, age_ms, idle_timeout_ms, profile)
  local uid, device, session = change.uid, change.device, change.session
  local field = uid .. ' ' .. device
  remove_pending_logins(uid)
  local record = read_record(uid)
  local present = record and record.sessions[device]
  local entry = {session = session, node = node, generation = generation, login_ms = now_ms - age_ms,
    arrived_ms = now_ms, idle_timeout_ms = idle_timeout_ms, late_ms = late_ms}
  if profile ~= '' then show_as(entry, profile) end
  local is_on_record = present and present.session == session
  local wins, return_allowed = true, nil
  if present and not is_on_record then wins, return_allowed = outcome_of(op, entry, present) end
  if not wins then
    superseded[#superseded + 1] = {uid, device, session, return_allowed}
    return
  end
  if is_on_record then
    entry.login_ms, entry.arrived_ms, entry.late_ms = present.login_ms, present.arrived_ms, present.late_ms
  elseif op == 'login' and record then
    -- An outbox is in order, even if a call that came late made the logins before this one look younger.
    for _, other in pairs(record.sessions) do
      if other.node == node then entry.login_ms = math.max(entry.login_ms, other.login_ms + 1) end
    end
    entry.late_ms = lateness(entry.login_ms - (reached_ms - age_ms))  -- its earliest time stays
  end
  if present and present.node ~= node then
    set_owned(present.node, field, false)
    if return_allowed ~= nil then
      notify(present.node, {type = 'displaced', uid = uid, device = device, session = present.session,
        by = node, return_allowed = return_allowed})
    end
  end
  local had_record = record
  record = put_session(change, record, entry, profile)
  -- a second session
  if had_record and next(record.sessions, next(record.sessions)) then note_another_session(uid, entry.class) end
  write_record(uid, record)
  set_owned(node, field, digits(generation) .. ' ' .. session)
end

-- Whether the index has a session of the calling node.
local function owns(field, session)
  if owned[node] and owned[node][field] ~= nil then return false end  -- this call has changed it, with the record
  return string.match(redis.call('HGET', sessions_key(node), field) or '', '^%d+ (.*)$') == session
end

local function end_session(op, change, age_ms)
  local uid, device, session = change.uid, change.device, change.session
  local text = records[uid] == nil and record_text(uid)
  local since_id, since_ms, its_device, its_session, its_node
  if text and #nodes_with_pending_logins() == 0 then
    since_id, since_ms, its_device, its_session, its_node = string.match(text, PLAIN_RECORD)
  end
  if since_id and #since_ms <= EXACT_DIGITS then
    if its_device == device and its_session == session then
      set_owned(its_node, uid .. ' ' .. device, false)
      go_offline(change, since_id, since_ms)
      return
    end
  end
  local record = read_record(uid)
  local present = record and record.sessions[device]
  if present and present.session == session then
    remove_session(change, record, now_ms - age_ms)
  elseif not record and owns(uid .. ' ' .. device, session) and end_without_record(change) then
    set_owned(node, uid .. ' ' .. device, false)
  elseif record then  -- of other sessions: after damage the index may have this one yet
    if owns(uid .. ' ' .. device, session) then set_owned(node, uid .. ' ' .. device, false) end
  elseif op == 'restore' then
    -- Redis lost the period that ends here: write it whole; only pending logins of other nodes remain.
    local ended = {session = session, node = node, generation = generation, login_ms = now_ms - age_ms}
    local privacy, public = privacy_in_use and privacy_of_offline(uid) or nil, nil
    if privacy then apply_privacy({ended}, privacy) end
    since_ms = tonumber(change.last_seen_ms) < tonumber(change.at_ms) and change.last_seen_ms or change.at_ms
    since_id, public = go_online({uid = uid, device = device, session = session, code = CODE_RETURNED, reason = 'returned',
      at_ms = since_ms}, privacy and ended, nil, privacy)
    record = {id = since_id, since_ms = tonumber(since_ms), sessions = {}, public = public, privacy = privacy}
    local before = hand_to_pending_login(record, uid, device, ended, now_ms - age_ms)
    if before then
      stay_online(change, record, ended, before)
    else
      go_offline(change, since_id, since_ms, privacy and ended, public, privacy)
    end
  end
end

local batch_history  -- of an opening call: the rows of `trail`
if opens then
  -- If the previous generation had another node id, that id is fenced: its delayed calls must not be applied after this
  -- answer.
  local before = redis.call('HMGET', node_prefix .. opening.before, 'gen', 'n', 'reply', 'trail')
  will('HSET', meta_key, 'version', opening.version)
  set_peer_trace(node, generation, count(counter[5]), false)
  if opening.before ~= node then
    fence(opening.before)
    drop_pending_logins(opening.before)  -- those that are still pending come again under this id
  end
  raise_floor(opening.floor)
  if opening.dropped > 0 then
    add_entry('gap', '0', 'node', node,
      'dropped', opening.dropped, 'from_ms', opening.from_ms, 'to_ms', opening.to_ms)
  end
  local _, former_superseded, former_counts, earlier = read_stored(before[3], before[4])
  batch_history = {{opening.before, count(before[1]), count(before[2]), former_superseded, former_counts}}
  for i = 1, math.min(#earlier, BATCH_HISTORY_LIMIT - 1) do batch_history[i + 1] = earlier[i] end
  will('HSET', node_key, 'trail', cmsgpack.pack(batch_history))
end

local items, reasons = cmsgpack.unpack(packed_items), cmsgpack.unpack(packed_reasons)
local uids, first_items = {}, {}  -- each once: a record may be large
for i = 2, #items, ITEM_VALUES do
  local uid = items[i]
  if not first_items[uid] then uids[#uids + 1], first_items[uid] = uid, i end
end
local fitting = read_ahead(uids)
if fitting < #uids then
  local items_before = (first_items[uids[fitting + 1]] - 2) / ITEM_VALUES
  return refuse('heavy', generation, items_before)
end
read_watchers(uids)
-- The change at hand, see lib/events.lua. A table for each would take a tenth of the time of a transition.
local change = {uid = '', device = '', session = '', code = '', reason = '', at_ms = '', last_seen_ms = '', grace_ms = false}
for i = 1, #items, ITEM_VALUES do
  local op, code = items[i], items[i + 4]
  change.uid, change.device, change.session, change.code = items[i + 1], items[i + 2], items[i + 3], code
  change.reason, change.at_ms = reasons[code], items[i + 5]
  if op == 'end' or op == 'restore' then
    local last_seen_ms, age_ms, grace_ms = items[i + 6], items[i + 7], items[i + 8]
    change.last_seen_ms, change.grace_ms = last_seen_ms, grace_ms ~= '' and grace_ms
    end_session(op, change, age_ms)
  else
    local age_ms, idle_timeout_ms, profile = items[i + 6], items[i + 7], items[i + 8]
    if op == 'hold' then
      add_pending_login(change, now_ms - age_ms, idle_timeout_ms, profile, reached_ms - age_ms)
    elseif op == 'update' then
      update_session(change, idle_timeout_ms, profile)
    elseif string.sub(op, 1, 6) == 'update' then
      update_session(change, idle_timeout_ms, profile, string.sub(op, 7))
    else
      add_session(op, change, age_ms, idle_timeout_ms, profile)
    end
  end
end
if #crowded > 0 then enforce_session_limits() end
collect_writes()
trim_seen(16 + 2 * #uids)
if is_complete then
  will('HSET', node_key, 'complete', generation)
  set_peer_trace(node, generation, generation, false, replication_id)
end
write_peer_traces()

local reply = {status = 'ok', last_id = highest_id, superseded = superseded, told = event_counts}
if opens then
  local flat, others = redis.call('HGETALL', peer_traces_key), {}  -- as they are after this call
  for id, text in pairs(peer_traces) do others[id] = text end
  for i = 1, #flat, 2 do
    if others[flat[i]] then flat[i + 1], others[flat[i]] = others[flat[i]], nil end
  end
  for id, text in pairs(others) do flat[#flat + 1], flat[#flat + 2] = id, text end
  reply.traces, reply.trail = flat, batch_history
end
local packed = cmsgpack.pack(reply)
will('HSET', node_key, 'gen', generation, 'n', n, 'reply', packed)
return carry_out_effects() or {packed, replication_id}
