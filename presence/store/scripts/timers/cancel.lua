-- Removes an event in any state.
--
-- KEYS and ARGV 1: see prelude.lua. ARGV
--   2 id
-- Returns ["ok", 1], or ["ok", 0] if there is no such event.

begin()
local id = ARGV[2]
local entry = read_entry(id)
if entry then
  remove_from_index(id, entry[1])
  remove_member(leased_key, id)
  remove_member(dead_key, id)
  delete_entry(id)
  add_count('cancelled', 1)
  commit()
end
return cmsgpack.pack({'ok', entry and 1 or 0})
