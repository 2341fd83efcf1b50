-- requires: shard record_cache profile shown_state events changes
-- provides: put_session update_session
-- Puts a session into the record of its user, and changes one that is there; collects the events.

-- Puts a session of a change into a user's record, in place of another one of its device; returns the record, new if the user
-- was offline. `profile`: its text, which the session shows. The caller calls `write_record`.
local function put_session(change, record, entry, profile)
  local uid, device = change.uid, change.device
  local present = record and record.sessions[device]
  local left_id, left_ms
  if not record then left_id, left_ms = remains_of_record(uid) end
  if left_id then  -- unreadable: the user was online, and stays it
    record = {id = left_id, since_ms = tonumber(left_ms or string.match(left_id, '^%d+')), sessions = {[device] = entry}}
  elseif not record then
    local id, public = go_online(change, profile ~= '' and entry, device_events and devices_text({[device] = entry}))
    record = {id = id, since_ms = tonumber(change.at_ms), sessions = {[device] = entry}, public = public}
  else
    local before = shown(record)
    record.sessions[device] = entry
    if not present or present.session ~= entry.session or not show_the_same(present, entry) then
      emit_if_shown_changed(change, record, before)
    end
    if not present then
      change.last_seen_ms = change.at_ms
      emit_device(change, record, entry)
    end
  end
  return record
end

-- Changes the profile and the idle time-out of a session in the record.
local function update_session(change, idle_timeout_ms, profile)
  local record = read_record(change.uid)
  local present = record and record.sessions[change.device]
  if not present or present.session ~= change.session then return end
  local shown_before = shown(record)
  local profile_before = show_instead(present, profile)
  present.idle_timeout_ms = idle_timeout_ms
  if shown_before == present then shown_before = profile_before end  -- `present` has the other profile by now
  emit_if_shown_changed(change, record, shown_before)
  write_record(change.uid, record)
end
