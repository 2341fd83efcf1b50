-- What clients are shown of rooms: how many members are not invisible, and who.
--
-- KEYS 1 rooms:sizes   2 rooms:events   3 absent
-- ARGV 1 prefix of the keys of rooms   2 most members to list; 0: none are   3... names of rooms
-- Returns MessagePack, for each room: the number of members who are not invisible, and their uids with a space between two;
-- false instead if they are more than may be listed, or if so many others are invisible that the room is not read.

local INVISIBLE_READ = 1000  -- invisible members of a room that are read to list the others: below 1 ms
local room_prefix, most, arguments = ARGV[1], tonumber(ARGV[2]), ARGV

local found = {}
for i = 3, #arguments do
  local key = room_prefix .. arguments[i]
  local extras = redis.call('HMGET', key, ' o', ' i')
  local invisible = tonumber(extras[2] or '') or 0
  local count = redis.call('HLEN', key) - (extras[1] and 1 or 0) - (extras[2] and 1 or 0) - invisible
  local shown = most > 0 and count <= most and invisible <= INVISIBLE_READ and {}
  if shown and count > 0 then
    local fields = redis.call('HGETALL', key)
    for j = 1, #fields, 2 do
      local uid, value = fields[j], fields[j + 1]
      if string.byte(uid) ~= 32 and string.byte(value, -1) ~= 105 then shown[#shown + 1] = uid end  -- space, i
    end
  end
  found[#found + 1], found[#found + 2] = math.max(count, 0), shown and table.concat(shown, ' ')
end
return cmsgpack.pack(found)
