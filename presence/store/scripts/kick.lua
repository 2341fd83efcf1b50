-- requires: effects shard record_cache session_index notices
-- Notifies the nodes of a user's sessions to end them.
--
-- KEYS and ARGV 1-9: see lib/shard.lua (of ARGV only 4 and 7 are used: the caller is no node). ARGV
--   10 uid
--   11 the operator, as text for the logs of nodes
--   12 device, to end only its session ("" is the default device)
-- Returns [answer, replication id of now]; answer is MessagePack: {sessions = [[device, session, node, fenced]...]},
-- empty if the user, or the device, is offline. A fenced node is not notified: its sessions are about to be swept. For that
-- the index has to have them.

local uid, operator, only_device = ARGV[10], ARGV[11], ARGV[12]

local failure = finish_former(meta_key)
if failure then return failure end

local found = {}
local record = read_record(uid)
for device, present in pairs(record and record.sessions or {}) do
  if not only_device or only_device == device then
    local fenced = is_fenced(present.node)
    found[#found + 1] = {device, present.session, present.node, fenced}
    if not fenced then
      notify(present.node, {type = 'kicked', uid = uid, device = device, session = present.session, by = operator,
        return_allowed = false})
    end
  end
end
if record then restore_index({[uid] = record}) end
collect_notices()
return carry_out(meta_key, {control_prefix .. node}) or answer_with({sessions = found})
