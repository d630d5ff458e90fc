-- Functions prepended to other scripts: the databases that feed namespaces and queues.

-- Hash: name of a queue -> '<installation> <label>'.
local QUEUE_OWNERS = 'drain:owners:queues'

-- Whether the text names an installation other than ours. The text of an older version names none, and a client that
-- only looks is no installation ('').
local function is_foreign(owner, ours)
  return ours ~= '' and owner and string.match(owner, '^%x+%-%x+%-%x+%-%x+%-%x+ ')
    and string.sub(owner, 1, #ours) ~= ours
end

-- Enters the list of a queue into RQ's set; returns the set's key if it holds something else. Only RQ's tools need it.
local function enter(key)
  local added = redis.pcall('SADD', 'rq:queues', key)
  return type(added) == 'table' and {'rq:queues'} or {}
end

-- Text of a namespace whose deliveries have all been pushed to this Redis.
local function remembering(installation, label) return installation .. ' remembers ' .. label end

-- Text of a namespace that was fed, or is about to be fed, but whose deliveries have not all been pushed.
local function recovering(installation, label) return installation .. ' recovers ' .. label end
