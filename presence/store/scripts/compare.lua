-- requires: shard refuse_outdated record_cache event_texts profile
-- Compares some sessions of a node with the records, and returns some of those it owns in Redis. Writes nothing.
--
-- KEYS and ARGV 1-9: see lib/shard.lua. ARGV
--   10 cursor of HSCAN over what the node owns, "0" first
--   11 approximate number of fields to read
--   12 sessions of the node, MessagePack: flat, uid, device, session, profile (see `fingerprint`)...
-- Returns [reply, replication id of now]; reply is MessagePack: {status, generation} when refused (history,
-- fenced, unknown, as in apply), else {status = "ok", cursor, owned = uid, device, session... of the page,
-- uncompared = how many sessions, the last ones in ARGV 12, were not compared, because the records of all are too large,
-- missing = numbers, from 0, of the sessions in ARGV 12 that no record has for this node with this profile, or that
-- `<node>:sessions` lacks: a sweep would not find them}.

local cursor, fields_to_read, sessions = ARGV[10], ARGV[11], cmsgpack.unpack(ARGV[12])

local refusal = refuse_outdated()
if refusal then return refusal end

local LETTERS = {online = '-', away = 'a', busy = 'b', dnd = 'd', invisible = 'i'}

-- "" if plain, by its own status; otherwise the letter of that, and the SHA-1 of each of its TEXTS, "-" where there is none.
local function fingerprint(session)
  if is_plain_session(session) then return '' end
  local status = status_of(session)
  if status == 'invisible' and RANKS[session.own] then status = session.own end
  local parts, is_plain = {LETTERS[status]}, status == 'online'
  for i, name in ipairs(TEXTS) do
    parts[i + 1], is_plain = session[name] and redis.sha1hex(session[name]) or '-', is_plain and not session[name]
  end
  return is_plain and '' or table.concat(parts)
end

local uids, first_of, fields = {}, {}, {}
for i = 1, #sessions, 4 do
  local uid = sessions[i]
  if not first_of[uid] then uids[#uids + 1], first_of[uid] = uid, i end
end
local fitting = read_ahead(uids)
local last_value = fitting < #uids and first_of[uids[fitting + 1]] - 1 or #sessions
for i = 1, last_value, 4 do fields[#fields + 1] = sessions[i] .. ' ' .. sessions[i + 1] end
local indexed = {}
for first = 1, #fields, VALUES_A_CALL do
  local last = math.min(first + VALUES_A_CALL - 1, #fields)
  local found = redis.call('HMGET', sessions_key(node), unpack(fields, first, last))
  for i = first, last do indexed[i] = found[i - first + 1] end
end
local missing = {}
for i = 1, last_value, 4 do
  local record = read_record(sessions[i])
  local present = record and record.sessions[sessions[i + 1]]
  if not present or present.session ~= sessions[i + 2] or present.node ~= node
    or indexed[(i + 3) / 4] ~= string.format('%.0f %s', present.generation, present.session)
    or fingerprint(present) ~= sessions[i + 3] then
    missing[#missing + 1] = (i - 1) / 4
  end
end

local owned_here = {}
local scan = redis.call('HSCAN', sessions_key(node), cursor, 'COUNT', fields_to_read)
for i = 1, #scan[2], 2 do
  local uid, device = string.match(scan[2][i], '^(%S+) (%S*)$')
  local session = uid and string.match(scan[2][i + 1], '^%d+ (.*)$')
  if session then
    local n = #owned_here
    owned_here[n + 1], owned_here[n + 2], owned_here[n + 3] = uid, device, session
  end
end
return answer_with({status = 'ok', cursor = scan[1], owned = owned_here, missing = missing,
  uncompared = (#sessions - last_value) / 4})
