-- requires: effects shard record_cache
-- provides: add_entry carry_out_effects digits event_counts highest_id publish raise_floor read_watchers top_ms
-- Entries of the stream, and their publication.

-- Prefix of the channels of users, and the channel of all changes of the shard: of the same database as the channel of
-- online events, with the shard's tag.
local shard_channels = string.sub(online_channel, 1, -string.len('online') - 1) .. string.match(events_key, '{%d+}')
local user_prefix, changes_channel = shard_channels .. ':user:', shard_channels .. ':changes'

local known_digits = {}  -- items of a batch share many times
local function digits(number)
  local text = known_digits[number]
  if not text then
    text = string.format('%.0f', number)
    known_digits[number] = text
  end
  return text
end

local highest_id = ''  -- of the entries of this call

local top_ms, top_n  -- the parts of the highest entry id, with the entries that this call will add
local top_prefix
local top_ms_before, top_n_before  -- the same without them; if no node watches the whole shard, this may be too low

-- How many connections listen to the channels of all events, and to the prefix of users' channels; and whether a node watches
-- the whole shard, because its clients watch many users: then it subscribes to all changes. nil until read.
local listeners, is_shard_watched
local function read_listeners()
  local found = redis.call('PUBSUB', 'NUMSUB', online_channel, offline_channel, user_prefix, changes_channel)
  listeners = {[online_channel] = found[2], [offline_channel] = found[4], [user_prefix] = found[6]}
  is_shard_watched = found[8] > 0
  return listeners
end

local function raise_top(id)
  local ms, n = string.match(id, '^(%d+)-(%d+)$')
  ms, n = tonumber(ms or 0), tonumber(n or 0)
  if ms >= EXACT - 1 then error('the last id of ' .. events_key .. ' is too high to continue') end
  if not top_ms or ms > top_ms or (ms == top_ms and n > top_n) then top_ms, top_n, top_prefix = ms, n, nil end
end

-- Makes ids of entries continue above one that a node has seen, whatever the clock and data of this server.
local function raise_floor(wanted)
  raise_top(last_id())
  top_ms_before, top_n_before = top_ms, top_n
  raise_top(wanted)
  if top_ms == top_ms_before and top_n == top_n_before then return end
  will('XADD', events_key, wanted, 'v', 1, 'type', 'floor')
  will('XDEL', events_key, wanted)
  will('HSET', meta_key, 'floor', wanted)
end

-- Returns the id of the next entry: as Redis would give it, so it follows the last one even if the clock has gone back.
--
-- The last id of the stream is read from all its information, which takes as long as some transitions. Where this user may
-- read backwards, it is enough to ask for an entry that the clock has not passed; `floor` of `meta` has an id that the
-- stream has reached without such an entry. Nodes that watch the whole shard are told its last entry: for them it is read.
local function take_id()
  if not top_ms then
    if not listeners then read_listeners() end
    if redis.acl_check_cmd and redis.acl_check_cmd('XREVRANGE', events_key) then
      raise_top(floor or '')
      local later = redis.call('XREVRANGE', events_key, '+', is_shard_watched and '-' or digits(now_ms), 'COUNT', '1')[1]
      if later then raise_top(later[1]) end
    else
      raise_top(last_id())
    end
    top_ms_before, top_n_before = top_ms, top_n
  end
  if top_ms < now_ms then
    top_ms, top_n, top_prefix = now_ms, 0, nil
  elseif top_n < EXACT - 1 then
    top_n = top_n + 1
  else
    top_ms, top_n, top_prefix = top_ms + 1, 0, nil
  end
  top_prefix = top_prefix or digits(top_ms) .. '-'
  highest_id = top_prefix .. (top_n < 1e14 and top_n or digits(top_n))
  return highest_id
end

-- How many entries of each kind this call has collected, flat: type, code ("0": a gap), number... It is part of
-- the reply, also of the stored one, so that the caller's node counts each entry once.
local event_counts, count_places = {}, {}  -- the places by type and code

-- Collects an entry, and counts it; returns its id, and its command. Further arguments: names and values of the rest of its
-- fields; a table of them would take a tenth of the time of a transition. Numbers are digits, because Redis converts those
-- of Lua slowly. The first entry of a call trims the stream.
local function add_entry(type, code, ...)
  local places = count_places[type]
  if not places then
    places = {}
    count_places[type] = places
  end
  local at = places[code]
  if not at then
    at = #event_counts + 3
    event_counts[at - 2], event_counts[at - 1], event_counts[at] = type, code, 0
    places[code] = at
  end
  event_counts[at] = event_counts[at] + 1
  local command = highest_id == ''
    and {'XADD', events_key, 'MAXLEN', '~', stream_maxlen, take_id(), 'v', '1', 'type', type, ...}
    or {'XADD', events_key, take_id(), 'v', '1', 'type', type, ...}
  add_effect(command)
  return highest_id, command
end

-- Whether a channel may have subscribers. This server does not know those at replicas and at other nodes of a cluster.
local may_have_others
local function has_subscribers(channel)
  if may_have_others == nil then
    local cluster = redis.acl_check_cmd and replication_info or redis.call('INFO', 'cluster')
    may_have_others = not string.find(replication_info, 'connected_slaves:0', 1, true)
      or not string.find(cluster, 'cluster_enabled:0', 1, true)
      or redis.call('PUBSUB', 'NUMPAT') > 0
  end
  return may_have_others or (listeners or read_listeners())[channel] > 0
end

-- The same for the channels of users. Only nodes whose clients watch a user subscribe there, each at the server of the
-- shard, so this server knows. Such a node also subscribes to the prefix itself as a channel: so one command tells most
-- calls that no user is watched.
local watched = {}  -- uid -> whether the channel has subscribers
local has_watchers

-- Reads the subscriber counts of several users.
local function read_watchers(uids)
  if has_watchers == nil then has_watchers = (listeners or read_listeners())[user_prefix] > 0 end
  if not has_watchers then return end
  for first = 1, #uids, VALUES_A_CALL do
    local last, channels = math.min(first + VALUES_A_CALL - 1, #uids), {}
    for i = first, last do channels[i - first + 1] = user_prefix .. uids[i] end
    local found = redis.call('PUBSUB', 'NUMSUB', unpack(channels))
    for i = first, last do watched[uids[i]] = found[2 * (i - first + 1)] > 0 end
  end
end

local function is_watched(uid)
  if has_watchers == false then return false end
  if watched[uid] == nil then read_watchers({uid}) end
  return watched[uid]
end

local changes, change_count  -- for the channel of all changes, see `carry_out_effects`; nil: none yet
local SINCE = 17  -- from the id of an entry about a user to the name of its first time, in its command

-- Collects the publication of an entry about a user to the channels that have subscribers. That of all events of the type,
-- unless it is nil, and that of the user get it as JSON, the latter with the user's status and its start; it costs as much
-- as writing the entry. That of all changes gets MessagePack, for a quarter of the time: [id, type, reason, status, its
-- start, name, value...], with the fields from the times on.
local function publish(uid, id, command, channel, status, status_ms)
  local id_at = command[3] == 'MAXLEN' and 6 or 3
  if is_shard_watched then
    if not changes then changes, change_count = {}, 0 end
    changes[change_count + 1], changes[change_count + 2] = uid,
      cmsgpack.pack({id, command[id_at + 4], command[id_at + 10], status, status_ms, unpack(command, id_at + SINCE)})
    change_count = change_count + 2
  end
  channel = channel and has_subscribers(channel) and channel
  if not (channel or is_watched(uid)) then return end
  local entry = {id = id}
  for i = id_at + 1, #command, 2 do
    local name, value = command[i], command[i + 1]
    entry[name] = (name == 'v' or name == 'code' or string.sub(name, -3) == '_ms') and tonumber(value) or value
  end
  if channel then will('PUBLISH', channel, cjson.encode(entry)) end
  if is_watched(uid) then
    entry.status, entry.status_ms = status, tonumber(status_ms)
    will('PUBLISH', user_prefix .. uid, cjson.encode(entry))
  end
end

-- Carries out all effects; returns an error reply if one was refused. Then it tells nodes that watch the whole shard what this
-- call has written, in one message: MessagePack [id of the last entry before the call, id of the last one of the call, [uid,
-- entry as in `publish`...]]. The ids form a chain, in which nodes see that they have missed entries: of a call that was cut
-- short, of a server whose scripts publish no such messages or whose Redis user may not, or in a message that was lost. So
-- this is no effect: it comes after all of them, a refusal is ignored, and it is never repeated.
local function carry_out_effects()
  local problem, at = carry_out(meta_key,
    {online_channel, offline_channel, control_prefix .. node, user_prefix})
  if at == 1 and effects[1][1] == 'XADD' and string.find(problem.err, 'equal or smaller', 1, true) then
    local deleted = last_id()  -- by hand: nothing has shown this id to this call, and nothing was written yet
    redis.call('HSET', meta_key, 'floor', deleted)
    return redis.error_reply('REPEAT this call: entry ' .. deleted .. ' was deleted from ' .. events_key)
  end
  if problem or not top_ms or (top_ms == top_ms_before and top_n == top_n_before) then return problem end
  if not listeners then read_listeners() end
  if is_shard_watched then
    redis.pcall('PUBLISH', changes_channel, cmsgpack.pack({digits(top_ms_before) .. '-' .. digits(top_n_before),
      digits(top_ms) .. '-' .. digits(top_n), changes or {}}))
  end
end
