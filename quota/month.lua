-- What the control database has of a month: from now on its use is known here.
-- KEYS 1 month (decide.lua says what it holds)
-- ARGV pairs of gateway and all that it has counted
--
-- A gateway's count never falls, so that a row older than what it has told by itself changes nothing.
local function plain(n) return string.format('%.0f', n) end
local grown = 0
for i = 1, #ARGV, 2 do
  local field, n = 'c:' .. ARGV[i], tonumber(ARGV[i + 1])
  local was = tonumber(redis.call('HGET', KEYS[1], field) or 0)
  if n > was then
    redis.call('HSET', KEYS[1], field, plain(n))
    grown = grown + n - was
  end
end
if grown > 0 then redis.call('HINCRBY', KEYS[1], 'total', plain(grown)) end
redis.call('HSET', KEYS[1], 'at', 1)
redis.call('PEXPIRE', KEYS[1], 3456000000)
return {1}
