-- requires: effects shard record_cache notices profile shown_state events changes
-- provides: put_session update_session
-- Puts a session into the record of its user, and changes one that is there; collects the events.

-- Tells the nodes of some sessions of a record what its user hides now; their notices come in the order of the changes.
local function tell_nodes(uid, record, sessions)
  if record.privacy and not privacy_in_use then
    privacy_in_use = '1'
    will('HSET', meta_key, 'privacy', '1')
  end
  for device, session in pairs(sessions) do
    if not is_fenced(session.node) then
      notify(session.node, {type = 'privacy', uid = uid, device = device, session = session.session, by = node,
        return_allowed = false, privacy = record.privacy or ''})
    end
  end
end

-- Puts a session of a change into a user's record, in place of another one of its device; returns the record, new if the user
-- was offline. `profile`: its text, which the session shows. The caller calls `write_record`.
local function put_session(change, record, entry, profile)
  local uid, device = change.uid, change.device
  local present = record and record.sessions[device]
  local known = record and record.privacy
  if not record and privacy_in_use then known = privacy_of_offline(uid) end
  local privacy = known
  -- What its node knows of the user's privacy, see `show_as`, and Redis may have lost. So nothing is taken back.
  local claims = profile ~= '' and string.match(profile, '^[IL]+')
  if claims then privacy = changed_privacy(known, (string.gsub(string.lower(claims), '.', '+%0'))) end
  if privacy then apply_privacy({entry}, privacy) end
  if entry.rooms then rooms_in_use = rooms_in_use or FIRST_ROOMS end
  local left_id, left_ms
  if not record then left_id, left_ms = remains_of_record(uid) end
  if left_id then  -- unreadable: the user was online, and stays it
    record = {id = left_id, since_ms = tonumber(left_ms or string.match(left_id, '^%d+')), sessions = {[device] = entry},
      privacy = privacy}
    if entry.rooms then staying().rooms(change, record) end
  elseif not record then
    local id, public = go_online(change, (profile ~= '' or privacy) and entry,
      device_events and devices_text({[device] = entry}), privacy)
    record = {id = id, since_ms = tonumber(change.at_ms), sessions = {[device] = entry}, public = public, privacy = privacy}
  else
    local before, hid_times, rooms = shown(record), hides(known, 'l'), rooms_in_use and rooms_of(record)
    if privacy ~= known then before, record.privacy = apply_privacy(record.sessions, privacy, before), privacy end
    record.sessions[device] = entry
    if not present or present.session ~= entry.session or privacy ~= known or not show_the_same(present, entry) then
      staying().shown_changed(change, record, before, hid_times)
    end
    if not present then
      change.last_seen_ms = change.at_ms
      staying().device(change, record, entry)
    end
    if rooms_in_use then staying().rooms(change, record, rooms) end
  end
  if privacy then tell_nodes(uid, record, privacy ~= known and record.sessions or {[device] = entry}) end
  return record
end

-- Changes the profile and the idle time-out of a session in the record, and what its user hides: `privacy_change` as in
-- `changed_privacy`, or nil.
local function update_session(change, idle_timeout_ms, profile, privacy_change)
  local record = read_record(change.uid)
  local present = record and record.sessions[change.device]
  if not present or present.session ~= change.session then return end
  local shown_before, hid_times, rooms = shown(record), hides(record.privacy, 'l'), rooms_in_use and rooms_of(record)
  if privacy_change then
    record.privacy = changed_privacy(record.privacy, privacy_change)
    shown_before = apply_privacy(record.sessions, record.privacy, shown_before)
    tell_nodes(change.uid, record, record.sessions)
  end
  local profile_before = show_instead(present, profile)
  if present.rooms then rooms_in_use = rooms_in_use or FIRST_ROOMS end
  present.idle_timeout_ms = idle_timeout_ms
  if shown_before == present then shown_before = profile_before end  -- `present` has the other profile by now
  if record.privacy then apply_privacy({present}, record.privacy) end
  staying().shown_changed(change, record, shown_before, hid_times)
  if rooms_in_use then staying().rooms(change, record, rooms) end
  write_record(change.uid, record)
end
