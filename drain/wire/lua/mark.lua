-- Marks the namespace as ours, and all its deliveries as present in this Redis.
--
-- ARGV: installation, label, key of the namespace.
-- Returns the text of another database that feeds the namespace; else ''.
local owner = redis.call('GET', ARGV[3])
if is_foreign(owner, ARGV[1]) then return owner end
redis.call('SET', ARGV[3], remembering(ARGV[1], ARGV[2]))
return ''
