-- A gateway is alive, and asks Redis for its decisions.
-- KEYS 1 gateways  2 what a probe writes  3 which state this is
-- ARGV now or "" for TIME, gateway, "beat" or "probe", a new name for the state, then gateways that are known to live without
--      Redis
--
-- A gateway that decides alone only probes, with a write as every decision needs one: a heartbeat that is executed but
-- not answered in time must not count. Answers how many gateways there are; how many of them have been silent for three
-- seconds, and decide alone if they live; and how many counted as dead within the last half minute: eight seconds of
-- silence are more than a hiccup of the link, and what the dead do not use is wanted by the others. Whoever is known to live
-- is missing for as long: its heartbeat is taken to be five seconds old. The last number names the state of this Redis: it is another
-- one when the state was lost, however briefly Redis was away, or when no gateway has beaten for two minutes.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1e6 + t[2]
end
local function plain(n) return string.format('%.0f', n) end
if ARGV[3] == 'probe' then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', 60000)
else
  redis.call('SET', KEYS[3], ARGV[4], 'NX')
  redis.call('PEXPIRE', KEYS[3], 120000)
  redis.call('ZADD', KEYS[1], plain(now), ARGV[2])
end
for i = 5, #ARGV do redis.call('ZADD', KEYS[1], 'XX', 'GT', plain(now - 5e6), ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. plain(now - 30e6))
redis.call('PEXPIRE', KEYS[1], 120000)
local function silent(us) return redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. plain(now - us)) end
local dead = silent(8e6)
return {redis.call('ZCARD', KEYS[1]) - dead, silent(3e6) - dead, dead, tonumber(redis.call('GET', KEYS[3]) or 0)}
