-- Lists dead letters, oldest first.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 number to skip   3 maximum number to list
-- Returns ["ok", [id, due_ms, attempt, payload, died_ms, of the next...]]; fewer if the reply is large.

local first, limit = tonumber(ARGV[2]), ARGV[3]
local scored = redis.call('ZRANGE', dead_key, first, first + limit - 1, 'WITHSCORES')
local rows, bytes = {}, 0
for i = 1, #scored, 2 do
  if bytes >= BYTES_A_CALL then break end
  local entry = read_entry(scored[i]) or {0, 0, ''}
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4], rows[n + 5] = scored[i], entry[1], entry[2], entry[3],
    tonumber(scored[i + 1])
  bytes = bytes + #entry[3]
end
return cmsgpack.pack({'ok', rows})
