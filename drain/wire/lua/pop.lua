-- Pops ids from the heads of the lists, the first list first, until there are enough; none while RQ is suspended.
--
-- An id that is not of our tracked jobs is popped alone, and put into RQ's intermediate list: this list may be the
-- only place that holds it. Keys that are not lists are left alone. An id that is too long for any job is dropped: read
-- again and again, one of a hundred megabytes would stop a worker.
--
-- KEYS: lists of the queues.
-- ARGV: how many ids; first part of our RQ ids; an id that the blocking command has popped already, and the list that
--   the id was in ('' and '' if there is none); and a letter for each of KEYS:
--   't' only tracked jobs run there, so another id at the head must be classified before anything else
--   's' other ids are skipped for now
--   'p' plain RQ jobs run there too
--   'b' the same, but this worker is busy with plain jobs: ours are taken from behind other ids
--   'o' only another id is taken, from behind ours
--   'x' nothing is taken
--   and an id of the blocking command that the worker has taken already, and its list ('' and '' if there is none).
-- Returns a state (0 popped, 1 suspended, 2 the head of this list must be classified), lists each followed by the
--   ids of it, keys that are not lists, whether other ids were left because this worker is busy (1 or 0), and lists each
--   followed by the beginning of an id that was dropped.
local most, prefix, popped, popped_from = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
-- Number of ids at the head of a list that 'b' and 'o' look at.
local SEARCHED = 100
-- Upper bound of the bytes of an id.
local LONGEST = 1000
local function is_ours(id)
  return string.sub(id, 1, #prefix) == prefix and string.match(id, '^%d+%-%d+$', #prefix + 1)
end
local no_lists, lists, mode, left, dropped = {}, {}, {}, 0, {}
local function is_list(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'list' or kind == 'none' then return true end
  no_lists[#no_lists + 1] = key
  return false
end
for place, key in ipairs(KEYS) do
  local both = is_list(key) and is_list(key .. ':intermediate')
  mode[key] = both and string.sub(ARGV[5], place, place) or 'x'
  if both then lists[#lists + 1] = key end
end
local function drop(key, id)
  dropped[#dropped + 1] = key
  dropped[#dropped + 1] = string.sub(id, 1, 50)
end
-- Ids at the head of a list, without those that are too long.
local function head(key, count)
  local ids, is_clean = redis.call('LRANGE', key, 0, count - 1), true
  for _, id in ipairs(ids) do is_clean = is_clean and #id <= LONGEST end
  if is_clean then return ids end
  local kept = {}
  for _, id in ipairs(ids) do
    if #id <= LONGEST then
      kept[#kept + 1] = id
    elseif redis.call('LREM', key, 1, id) == 1 then
      drop(key, id)
    end
  end
  return kept
end
if ARGV[6] ~= '' then redis.pcall('LREM', ARGV[7] .. ':intermediate', 1, ARGV[6]) end
local suspended = redis.call('EXISTS', 'rq:suspended') == 1
if popped ~= '' then
  redis.pcall('LREM', popped_from .. ':intermediate', 1, popped)
  if #popped > LONGEST then
    drop(popped_from, popped)
    popped = ''
  end
end
if popped ~= '' then
  local stays = not is_ours(popped) and string.find('tbx', mode[popped_from], 1, true)
  if suspended or stays then
    redis.call('LPUSH', popped_from, popped)
    popped = ''
    if not suspended and mode[popped_from] == 't' then return {2, {popped_from}, no_lists, left, dropped} end
  end
end
if suspended then return {1, {}, no_lists, left, dropped} end
local found = {}
local function pop_other(key, id)
  redis.call('LREM', key, 1, id)
  redis.call('RPUSH', key .. ':intermediate', id)
  return {0, {key, {id}}, no_lists, left, dropped}
end
if popped ~= '' then
  found[1] = popped_from
  found[2] = {popped}
  if not is_ours(popped) then
    redis.call('RPUSH', popped_from .. ':intermediate', popped)
    return {0, found, no_lists, left, dropped}
  end
  most = most - 1
end
local function take_from_behind(key)
  local taken = {}
  for _, id in ipairs(head(key, math.max(most, SEARCHED))) do
    if #taken == most then break end
    if is_ours(id) then taken[#taken + 1] = id else left = 1 end
  end
  for _, id in ipairs(taken) do redis.call('LREM', key, 1, id) end
  return taken
end
for _, key in ipairs(lists) do
  if most <= 0 then break end
  if mode[key] == 'b' then
    local taken = take_from_behind(key)
    if #taken > 0 then
      found[#found + 1] = key
      found[#found + 1] = taken
      most = most - #taken
    end
  elseif mode[key] == 'o' then
    for _, id in ipairs(head(key, SEARCHED)) do
      if not is_ours(id) then return pop_other(key, id) end
    end
  elseif mode[key] ~= 'x' then
    local ids = head(key, most)
    local ours = #ids
    for number, id in ipairs(ids) do
      if not is_ours(id) then
        ours = number - 1
        break
      end
    end
    if ours > 0 then
      redis.call('LTRIM', key, ours, -1)
      found[#found + 1] = key
      found[#found + 1] = ours == #ids and ids or {unpack(ids, 1, ours)}
      most = most - ours
    elseif #ids > 0 and mode[key] == 's' then
      ours = #ids
    elseif #ids > 0 and #found == 0 and mode[key] == 't' then
      return {2, {key}, no_lists, left, dropped}
    elseif #ids > 0 and #found == 0 then
      return pop_other(key, ids[1])
    end
    if ours < #ids and mode[key] ~= 's' then break end
  end
end
return {0, found, no_lists, left, dropped}
