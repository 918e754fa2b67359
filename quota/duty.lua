-- Which gateway asks the brokers of a cell what its clusters retain.
-- KEYS 1 clusters served lately, by when  2 the gateway that asks
-- ARGV now or "" for TIME, gateway, microseconds for which it has the duty, then the clusters that it served; with 0 it
--      gives the duty up
--
-- Answers whether the gateway has the duty, the time, and if it has, all clusters.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1e6 + t[2]
end
local function plain(n) return string.format('%.0f', n) end
local span = tonumber(ARGV[3])
local holder = redis.call('HMGET', KEYS[2], 'gateway', 'until')
local mine = holder[1] == ARGV[2]
if span == 0 then
  if mine then redis.call('UNLINK', KEYS[2]) end
  return {0, plain(now)}
end
for i = 4, #ARGV do redis.call('ZADD', KEYS[1], plain(now), ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. plain(now - 60e6))
redis.call('PEXPIRE', KEYS[1], 120000)
if not mine and holder[1] and tonumber(holder[2]) > now then return {0, plain(now)} end
redis.call('HSET', KEYS[2], 'gateway', ARGV[2], 'until', plain(now + span))
redis.call('PEXPIRE', KEYS[2], 120000)
local answer = redis.call('ZRANGE', KEYS[1], 0, -1)
table.insert(answer, 1, plain(now))
table.insert(answer, 1, 1)
return answer
