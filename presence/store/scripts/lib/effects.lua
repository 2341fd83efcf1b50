-- The writes of a call. A script computes everything first, collects its writes here with `will`, and ends with
-- `carry_out`; so an error while it computes leaves nothing behind, and a retry begins anew.
--
-- `carry_out` first checks what could refuse a write: the permissions of the Redis user (before Redis 7 a script cannot
-- ask) and the types of the keys. Memory is checked by Redis at the first write of a script only. A write that is refused
-- all the same, after others, must not be repeated with them: what is left is stored in the field `unfinished` of a hash,
-- and each call that writes carries it out first (`finish_former`). So a call is applied once, whenever it stops: the
-- point from which on it counts as applied is its first write.

local effects, effect_count = {}, 1  -- the first place is for `will_first`

local function will(...)
  effect_count = effect_count + 1
  effects[effect_count] = {...}
end

-- Sets the write that is carried out before all others: one that needs memory, so that a full server refuses the call.
local function will_first(...)
  effects[1] = {...}
end

local channels = {}  -- to check for permission: a channel of each kind that is published to

-- Publishes a text. `kind`: a channel with the same permission.
local function will_publish(kind, channel, text)
  channels[kind] = true
  will('PUBLISH', channel, text)
end

-- What reads a key as the type that a command needs; a stream's information was read for the ids of entries.
local READS = {HSET = 'HLEN', HDEL = 'HLEN', HINCRBY = 'HLEN', ZADD = 'ZSCORE', ZREM = 'ZSCORE', SADD = 'SMEMBERS',
  SREM = 'SMEMBERS'}

-- Returns what would refuse an effect, as an error reply; nil: nothing. `sound`: keys that were read as the type needed.
local function find_refusal(sound)
  local allowed, command, key = {}, nil, nil
  local function is_forbidden() return redis.acl_check_cmd and not redis.acl_check_cmd(command, key) end
  for i = effects[1] and 1 or 2, effect_count do
    command, key = effects[i][1], effects[i][2]
    local keys = allowed[command]
    if not keys then
      keys = {}
      allowed[command] = keys
    end
    if not keys[key] and command ~= 'PUBLISH' then
      keys[key] = true
      if is_forbidden() then return redis.error_reply('NOPERM this user may not call ' .. command .. ' ' .. key) end
      local read = not sound[key] and READS[command]
      if read then
        local answer = redis.pcall(unpack(read == 'ZSCORE' and {read, key, ''} or {read, key}))
        if type(answer) == 'table' and answer.err then return redis.error_reply(answer.err .. ': ' .. key) end
        sound[key] = true
      end
    end
  end
  command = 'PUBLISH'
  for kind in pairs(channels) do
    key = kind
    if is_forbidden() then return redis.error_reply('NOPERM this user may not call PUBLISH ' .. key) end
  end
end

-- Carries out a list of effects from a place on; returns the place and the error reply of the one that was refused.
local function perform(list, first, last)
  local pcall, unpack = redis.pcall, unpack
  for i = first, last do
    local answer = pcall(unpack(list[i]))
    if type(answer) == 'table' and answer.err then return i, answer end
  end
end

local function keep_unfinished(hash, list, first, last)
  local left = {}
  for i = first, last do left[#left + 1] = list[i] end
  redis.call('HSET', hash, 'unfinished', cmsgpack.pack(left))
end

-- Carries out all effects; returns an error reply if one was refused. `hash`: where the rest is stored then.
local function carry_out(hash, sound)
  local refusal = find_refusal(sound or {})
  if refusal then return refusal end
  local first = effects[1] and 1 or 2
  local at, problem = perform(effects, first, effect_count)
  if at and at > first then keep_unfinished(hash, effects, at, effect_count) end
  return problem
end

-- Carries out what a former call had to leave; returns an error reply if it is refused again.
local function finish_former(hash)
  local packed = redis.call('HGET', hash, 'unfinished')
  if not packed then return end
  local ok, left = pcall(cmsgpack.unpack, packed)
  if ok and type(left) == 'table' then
    local at, problem = perform(left, 1, #left)
    if at and at > 1 then keep_unfinished(hash, left, at, #left) end
    if at then return problem end
  end
  redis.call('HDEL', hash, 'unfinished')
end

