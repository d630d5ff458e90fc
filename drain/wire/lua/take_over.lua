-- Releases the namespace and queues that a vanished database feeds.
--
-- Jobs of ours that were refused while that database fed a queue are in no list, and below the watermark: the
-- namespace is marked as recovering, if it is ours or free, so that the leader pushes all waiting jobs again.
--
-- ARGV: vanished installation, key of the namespace, our installation, our label.
-- Returns how many keys and queues the vanished database fed.
local gone, marker, ours, label = unpack(ARGV)
local taken = 0
local function is_theirs(owner)
  return owner and string.sub(owner, 1, #gone + 1) == gone .. ' '
end
local owners = redis.call('HGETALL', QUEUE_OWNERS)
for i = 1, #owners, 2 do
  if is_theirs(owners[i + 1]) then
    redis.call('HDEL', QUEUE_OWNERS, owners[i])
    taken = taken + 1
  end
end
if is_theirs(redis.call('GET', marker)) then
  redis.call('DEL', marker)
  taken = taken + 1
end
if taken > 0 and not is_foreign(redis.call('GET', marker), ours) then
  redis.call('SET', marker, recovering(ours, label))
end
return taken
