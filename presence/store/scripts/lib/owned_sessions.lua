-- requires: shard record_cache entries events changes
-- provides: count_names end_owned scan_owned
-- Goes through the sessions that a node owns, and ends them.

-- The change of the session at hand, see lib/events.lua.
local change = {uid = '', device = '', session = '', code = CODE_NODE_DOWN, reason = 'node_down', at_ms = '',
  last_seen_ms = ''}

-- Ends the session that a node owns under a field, "<uid> <device>", if the record still has that session, node and
-- generation; returns whether it did. `latest_ms`: latest time at which it can have been seen; 0: unknown.
local function end_owned(of_node, field, uid, device, owned_generation, session, latest_ms)
  local record = read_record(uid)
  local present = record and record.sessions[device]
  if latest_ms == 0 or latest_ms > now_ms then latest_ms = now_ms end
  change.uid, change.device, change.session = uid, device, session
  if not (present and present.session == session and present.node == of_node
      and present.generation == owned_generation) then
    set_owned(of_node, field, false)
    change.at_ms, change.last_seen_ms = digits(now_ms), digits(latest_ms)
    return end_without_record(change)
  end
  local last_seen_ms = math.max(record.since_ms, latest_ms)
  change.at_ms, change.last_seen_ms = digits(math.max(now_ms, last_seen_ms)), digits(last_seen_ms)
  remove_session(change, record, now_ms)
  return true
end

-- Scans some of the sessions that a node owns; returns the next cursor, "0" at the end. Calls `visit` with each: field, uid,
-- device, generation, session. Removes damaged fields. `cursor`: of HSCAN, and if the records of a page were too large for
-- one call, after a colon the number of its fields that were visited and stay.
local function scan_owned(id, cursor, limit, visit)
  local page, skipped = string.match(cursor, '^(%d+):?(%d*)$')
  local scan = redis.call('HSCAN', sessions_key(id), page, 'COUNT', limit)
  local found, uids, is_listed = scan[2], {}, {}
  local first = 2 * (tonumber(skipped) or 0) + 1
  for i = first, #found, 2 do
    local uid = string.match(found[i], '^(%S+) %S*$')
    if uid and not is_listed[uid] then uids[#uids + 1], is_listed[uid] = uid, true end
  end
  local too_many = uids[read_ahead(uids) + 1]
  read_watchers(uids)
  local staying = (first - 1) / 2
  for i = first, #found, 2 do
    local uid, device = string.match(found[i], '^(%S+) (%S*)$')
    if uid and uid == too_many then return page .. ':' .. staying end
    local owned_generation, session = string.match(found[i + 1], '^(%d+) (.*)$')
    if uid and owned_generation then
      visit(found[i], uid, device, tonumber(owned_generation), session)
    else
      set_owned(id, found[i], false)
    end
    if not (owned[id] and owned[id][found[i]] == false) then staying = staying + 1 end
  end
  return scan[1]
end

local function count_names(changes)
  local n = 0
  for _ in pairs(changes or {}) do n = n + 1 end
  return n
end

