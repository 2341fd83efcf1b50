-- Adds bans or lifts them, and now and then removes those that have ended.
--
-- KEYS
--   1 bans  hash: "<uid>" for all devices of a user, "<uid> <device>" for one ("<uid> " for the default one) -> JSON,
--           {"until_ms": ms of this server's clock, or null, "at_ms", "reason", "by"}; and " version", which is another
--           after each change, also after one that follows a loss of data: a time in microseconds that rises
-- ARGV
--   1 MessagePack, bans to add: [field, ms from now (0: for ever), the rest of the JSON]...
--   2 MessagePack, what to lift: fields; one of "<uid>  " (two spaces) lifts all bans of the user
--   3 the most bans in the table
-- Returns MessagePack: {status, bans = their number, until_ms = of those added (0: none)..., lifted = fields}. Status
-- "full": nothing was added or lifted, because there would be too many.

local SWEEP_EACH = 100  -- bans added between two sweeps
local bans_key = KEYS[1]
local added, lift, most = cmsgpack.unpack(ARGV[1]), {}, tonumber(ARGV[3])
for _, field in ipairs(cmsgpack.unpack(ARGV[2])) do lift[field] = true end
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local lifted = {}

-- Removes what has ended, and what is to be lifted: a pass over all, which at the bound takes some 20 ms.
local function sweep()
  local all = redis.call('HGETALL', bans_key)
  for i = 1, #all, 2 do
    local field = all[i]
    local user = string.match(field, '^[^ ]+')  -- none: the version
    local until_ms = user and tonumber(string.match(all[i + 1], '^{"until_ms":(%d+),') or '')
    if until_ms and until_ms <= now_ms then
      redis.call('HDEL', bans_key, field)
    elseif user and (lift[field] or lift[user .. '  ']) then
      redis.call('HDEL', bans_key, field)
      lifted[#lifted + 1] = field
    end
  end
end

-- The bans in the table, and how many more there would be.
local function counts()
  local new = 0
  for _, ban in ipairs(added) do new = new + 1 - redis.call('HEXISTS', bans_key, ban[1]) end
  return redis.call('HLEN', bans_key) - redis.call('HEXISTS', bans_key, ' version'), new
end

local count, new = counts()
if next(lift) or count + new > most or math.floor(count / SWEEP_EACH) < math.floor((count + new) / SWEEP_EACH) then
  sweep()
  count, new = counts()
end
if #added > 0 and count + new > most then return cmsgpack.pack({status = 'full', bans = count}) end

local untils = {}
for i, ban in ipairs(added) do
  untils[i] = ban[2] > 0 and now_ms + ban[2] or 0
  local text = ban[2] > 0 and string.format('%.0f', untils[i]) or 'null'
  redis.call('HSET', bans_key, ban[1], string.format('{"until_ms":%s,"at_ms":%.0f,', text, now_ms) .. ban[3])
end
if #added + #lifted > 0 then
  local version = tonumber(redis.call('HGET', bans_key, ' version') or '') or 0
  local now_us = clock[1] * 1000000 + clock[2]
  redis.call('HSET', bans_key, ' version', string.format('%.0f', math.max(version + 1, now_us)))
end
return cmsgpack.pack({status = 'ok', bans = count + new, until_ms = untils, lifted = lifted})
