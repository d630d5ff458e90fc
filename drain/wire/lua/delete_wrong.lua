-- Deletes our keys of the wrong type, so that they are rewritten.
--
-- KEYS: the keys. ARGV: the type that each should have. Returns the keys that were deleted.
local deleted = {}
for place, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= ARGV[place] then
    redis.call('UNLINK', key)
    deleted[#deleted + 1] = key
  end
end
return deleted
