-- Reads the heads of lists, and only the beginning of an id too long for any job: the leader does so every
-- second, and there may be no worker to remove the id.
--
-- KEYS: lists. ARGV: how many ids. Returns the ids of each list, or 0 where the key is not a list.
local LONGEST = 1000
local heads = {}
for place, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'list' or kind == 'none' then
    local ids = redis.call('LRANGE', key, 0, ARGV[1] - 1)
    for number, id in ipairs(ids) do ids[number] = string.sub(id, 1, LONGEST) end
    heads[place] = ids
  else
    heads[place] = 0
  end
end
return heads
