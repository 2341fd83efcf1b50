-- Adds bans or lifts them, and now and then removes those that have ended.
--
-- KEYS
--   1 bans  hash: "<uid>" for all devices of a user, "<uid> <device>" for one ("<uid> " for the default one), and
--           " <network>", such as " 192.0.2.0/24", for addresses -> JSON,
--           {"until_ms": ms of this server's clock, or null, "at_ms", "reason", "by"}; and " version", which is another
--           after each change, also after one that follows a loss of data: a time in microseconds that rises
-- ARGV
--   1 MessagePack, bans to add: [field, ms from now (0: for ever), the rest of the JSON]...
--   2 MessagePack, what to lift: fields; one of "<uid>  " (two spaces) lifts all bans of the user
--   3 the most bans in the table
-- Returns MessagePack: {status, bans = their number, until_ms = of those added (0: none)..., lifted = fields}. Status
-- "full": nothing was added or lifted, because there would be too many.

local SWEEP_EACH = 100  -- bans added between two sweeps
local FIELDS_A_CALL = 1000  -- well within the stack limit of unpack
local bans_key = KEYS[1]
local added, fields_to_lift, most = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2]), tonumber(ARGV[3])
local lift = {}
for _, field in ipairs(fields_to_lift) do lift[field] = true end
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local written, removed, lifted = {}, {}, {}  -- `written`: flat, fields and texts

-- Removes what has ended, and what is to be lifted: a pass over all, which at the bound takes some 20 ms.
local function sweep()
  local all = redis.call('HGETALL', bans_key)
  for i = 1, #all, 2 do
    local field = all[i]
    local user = string.match(field, '^[^ ]+')  -- none: a network, or the version
    local is_ban = field ~= ' version'
    local until_ms = is_ban and tonumber(string.match(all[i + 1], '^{"until_ms":(%d+),') or '')
    local is_over = until_ms and until_ms <= now_ms
    if is_over or (is_ban and (lift[field] or (user and lift[user .. '  ']))) then
      removed[#removed + 1], removed[field] = field, true
      if not is_over then lifted[#lifted + 1] = field end
    end
  end
end

-- The bans in the table, and how many more there would be.
local function counts()
  local new = 0
  for _, ban in ipairs(added) do
    if removed[ban[1]] or redis.call('HEXISTS', bans_key, ban[1]) == 0 then new = new + 1 end
  end
  return redis.call('HLEN', bans_key) - redis.call('HEXISTS', bans_key, ' version') - #removed, new
end

-- Removes what is to be removed, unless it was added again; a bounded number of fields at a time.
local function remove()
  local gone = {}
  for _, field in ipairs(removed) do
    if removed[field] then gone[#gone + 1] = field end
  end
  for i = 1, #gone, FIELDS_A_CALL do
    redis.call('HDEL', bans_key, unpack(gone, i, math.min(i + FIELDS_A_CALL - 1, #gone)))
  end
end

local count, new = counts()
if next(lift) or count + new > most or math.floor(count / SWEEP_EACH) < math.floor((count + new) / SWEEP_EACH) then
  sweep()
  count, new = counts()
end
if #added > 0 and count + new > most then
  remove()
  return cmsgpack.pack({status = 'full', bans = count})
end

local untils = {}
for i, ban in ipairs(added) do
  untils[i] = ban[2] > 0 and now_ms + ban[2] or 0
  local text = ban[2] > 0 and string.format('%.0f', untils[i]) or 'null'
  written[2 * i - 1], removed[ban[1]] = ban[1], nil
  written[2 * i] = string.format('{"until_ms":%s,"at_ms":%.0f,', text, now_ms) .. ban[3]
end
-- Memory is checked at the first write only. Bans can be lifted without it; this one changes nothing.
if #added == 0 and #removed > 0 then redis.call('HDEL', bans_key, '') end
if #added + #lifted > 0 then
  local version = tonumber(redis.call('HGET', bans_key, ' version') or '') or 0
  local now_us = clock[1] * 1000000 + clock[2]
  table.insert(written, 1, string.format('%.0f', math.max(version + 1, now_us)))
  table.insert(written, 1, ' version')
  redis.call('HSET', bans_key, unpack(written))
end
-- Last: if this is refused, what is to be lifted is still there, and a repeated call lifts it with another version.
remove()
return cmsgpack.pack({status = 'ok', bans = count + new, until_ms = untils, lifted = lifted})
