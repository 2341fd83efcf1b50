-- provides: add_effect carry_out effect_count effects finish_former floor privacy_in_use rooms_in_use will
-- The writes of a call, its *effects*. A script computes everything first, collects them here with `will`, and ends with
-- `carry_out`; so an error while it computes leaves nothing behind, and a retry begins anew.
--
-- `carry_out` first checks the permissions of the Redis user (before Redis 7 a script cannot ask). Memory is checked by Redis
-- at the first write of a script only. A write that is refused all the same, after others, because its key is of another
-- type, must not be repeated with them: what is left is stored in the field `unfinished` of a hash, and each call that
-- writes carries it out first (`finish_former`), when the key is repaired. So a call is applied once, wherever it stops: it
-- counts as applied from its first write on.

local effects, effect_count = {}, 0

-- Collects a write: a table of a command and its arguments.
local function add_effect(effect)
  effect_count = effect_count + 1
  effects[effect_count] = effect
end

local function will(...)
  add_effect({...})
end

-- Returns an error reply if the Redis user may not call one of the commands, or publish to one of `channels`; else nil.
-- `prefix`: of keys that one permission is for, or nil.
local function find_refusal(channels, prefix)
  local is_allowed, command, key = redis.acl_check_cmd, nil, nil
  for i = 1, is_allowed and effect_count or 0 do
    local effect = effects[i]
    if effect[1] ~= 'PUBLISH' and (effect[1] ~= command or effect[2] ~= key)
        and not (prefix and effect[1] == command and string.sub(effect[2], 1, #prefix) == prefix
          and string.sub(key, 1, #prefix) == prefix) then
      command, key = effect[1], effect[2]
      if not is_allowed(command, key) then
        return redis.error_reply('NOPERM this user may not call ' .. command .. ' ' .. key)
      end
    end
  end
  for i = 1, is_allowed and #channels or 0 do
    if not is_allowed('PUBLISH', channels[i]) then
      return redis.error_reply('NOPERM this user may not call PUBLISH ' .. channels[i])
    end
  end
end

-- Carries out a list of effects from a place on; returns the place and the error reply of the one that was refused.
local function perform(list, first, last)
  local pcall, unpack, type = redis.pcall, unpack, type
  for i = first, last do
    local answer = pcall(unpack(list[i]))
    if type(answer) == 'table' and answer.err then
      return i, redis.error_reply(answer.err .. ' (' .. list[i][1] .. ' ' .. list[i][2] .. ')')
    end
  end
end

local function keep_unfinished(hash, list, first, last)
  local rest = {}
  for i = first, last do rest[#rest + 1] = list[i] end
  redis.call('HSET', hash, 'unfinished', cmsgpack.pack(rest))
end

-- Carries out all effects; returns an error reply if one was refused, and its place. `hash`: where the rest is stored then.
-- `channels`: one of each kind of permission that publishing needs, also if there is nothing to publish now. `prefix`: see
-- `find_refusal`.
local function carry_out(hash, channels, prefix)
  local refusal = find_refusal(channels, prefix)
  if refusal then return refusal end
  local at, problem = perform(effects, 1, effect_count)
  if at and at > 1 then keep_unfinished(hash, effects, at, effect_count) end
  return problem, at
end

-- Fields of the hash that `finish_former` was called with, see KEYS 7 in lib/shard.lua. `floor` of `meta`: what `take_id` of
-- lib/entries.lua needs; `privacy`: whether users hide something; `rooms`: whether sessions are in rooms. nil or false: none.
-- They are read with `unfinished`, because each command takes time.
local floor, privacy_in_use, rooms_in_use

-- Carries out what a former call had to leave; returns an error reply if it is refused again. Sets `floor`, `privacy_in_use`
-- and `rooms_in_use`.
local function finish_former(hash)
  local found = redis.call('HMGET', hash, 'unfinished', 'floor', 'privacy', 'rooms')
  floor, privacy_in_use, rooms_in_use = found[2], found[3], found[4]
  if not found[1] then return end
  local ok, rest = pcall(cmsgpack.unpack, found[1])
  if ok and type(rest) == 'table' then
    local at, problem = perform(rest, 1, #rest)
    if at and at > 1 then keep_unfinished(hash, rest, at, #rest) end
    if at then return problem end
  end
  redis.call('HDEL', hash, 'unfinished')
  found = redis.call('HMGET', hash, 'floor', 'privacy', 'rooms')
  floor, privacy_in_use, rooms_in_use = found[1], found[2], found[3]
end

