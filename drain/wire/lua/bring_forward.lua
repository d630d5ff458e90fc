-- Moves our ids from a part of a list to its head, in the same order.
--
-- KEYS: list. ARGV: first part of our RQ ids; place of the first id of the part, counted from the tail if it is negative;
--   length of the part; upper bound of the ids.
-- Returns how many there were; -1 if the part begins beyond the end of the list.
local key, prefix, first, length, most = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
-- Placeholder for ids until all are removed together: RQ's ids have no such characters.
local MOVED = 'moved by drain'
local all = redis.call('LLEN', key)
local is_tail = first < 0
if is_tail then first = math.max(0, all + first) end
if first >= all then return -1 end
local ours = {}
for place, id in ipairs(redis.call('LRANGE', key, first, first + length - 1)) do
  if #ours == most then break end
  if string.sub(id, 1, #prefix) == prefix and string.match(id, '^%d+%-%d+$', #prefix + 1) then
    ours[#ours + 1] = id
    redis.call('LSET', key, first + place - 1, MOVED)
  end
end
if #ours > 0 then redis.call('LREM', key, is_tail and -#ours or #ours, MOVED) end
for place = #ours, 1, -1 do redis.call('LPUSH', key, ours[place]) end
return #ours
