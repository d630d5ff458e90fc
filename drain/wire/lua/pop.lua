-- Pops ids from the heads of the lists, the first list first, until there are enough; none while RQ is suspended.
--
-- An id that is none of our tracked jobs' is popped alone, and put into RQ's intermediate list: this list may be the
-- only place that holds it. Keys that are no lists are left alone.
--
-- KEYS: lists of the queues.
-- ARGV: how many ids; first part of our RQ ids; an id that the blocking command has popped already, and the list that
--   the id was in ('' and '' if there is none); and a letter for each of KEYS:
--   't' only tracked jobs run there, so another id at the head has to be classified before anything else
--   's' other ids are skipped for now
--   'p' plain RQ jobs run there too
--   and an id of the blocking command that the worker has taken already, and its list ('' and '' if there is none).
-- Returns a state (0 popped, 1 suspended, 2 the head of this list has to be classified), lists each followed by the
--   ids of it, and keys that are no lists.
local most, prefix, popped, popped_from = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local function is_ours(id)
  return string.sub(id, 1, #prefix) == prefix and string.match(id, '^%d+%-%d+$', #prefix + 1)
end
local no_lists, lists, mode = {}, {}, {}
for place, key in ipairs(KEYS) do
  mode[key] = string.sub(ARGV[5], place, place)
  local kind = redis.call('TYPE', key).ok
  if kind == 'list' or kind == 'none' then lists[#lists + 1] = key else no_lists[#no_lists + 1] = key end
end
if ARGV[6] ~= '' then redis.call('LREM', ARGV[7] .. ':intermediate', 1, ARGV[6]) end
local suspended = redis.call('EXISTS', 'rq:suspended') == 1
if popped ~= '' then
  redis.call('LREM', popped_from .. ':intermediate', 1, popped)
  if suspended or (mode[popped_from] == 't' and not is_ours(popped)) then
    redis.call('LPUSH', popped_from, popped)
    if not suspended then return {2, {popped_from}, no_lists} end
  end
end
if suspended then return {1, {}, no_lists} end
local found = {}
if popped ~= '' then
  found[1] = popped_from
  found[2] = {popped}
  if not is_ours(popped) then
    redis.call('RPUSH', popped_from .. ':intermediate', popped)
    return {0, found, no_lists}
  end
  most = most - 1
end
for _, key in ipairs(lists) do
  if most <= 0 then break end
  local ids = redis.call('LRANGE', key, 0, most - 1)
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
    return {2, {key}, no_lists}
  elseif #ids > 0 and #found == 0 then
    redis.call('LPOP', key)
    redis.call('RPUSH', key .. ':intermediate', ids[1])
    return {0, {key, {ids[1]}}, no_lists}
  end
  if ours < #ids and mode[key] ~= 's' then break end
end
return {0, found, no_lists}
