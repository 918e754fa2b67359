-- The slots of one gateway in one cluster.
-- KEYS 1 gateways with slots  2 slots of this gateway
-- ARGV now or "" for TIME, gateway, what, then pairs of microseconds to the deadline and slot
--
-- what: beat  the gateway lives: its slots count on; answers how many Redis has
--       renew the slots that follow are all there are
--       add   and so are these
--       free  the slots that follow are free (their microseconds say nothing)

local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1e6 + t[2]
end
local function plain(n) return string.format('%.0f', n) end
local what = ARGV[3]
if what == 'renew' then redis.call('UNLINK', KEYS[2]) end
for i = 4, #ARGV, 2 do
  if what == 'free' then
    redis.call('ZREM', KEYS[2], ARGV[i + 1])
  else
    redis.call('ZADD', KEYS[2], plain(now + ARGV[i]), ARGV[i + 1])
  end
end
local n = redis.call('ZCARD', KEYS[2])
if what ~= 'free' then
  redis.call('ZADD', KEYS[1], plain(now + 15e6), ARGV[2])
  redis.call('PEXPIRE', KEYS[1], 60000)
  redis.call('PEXPIRE', KEYS[2], 60000)
elseif n == 0 then
  redis.call('ZREM', KEYS[1], ARGV[2])
end
return {n}
