-- Changes of the names of one cluster, at most a chunk at a time: no call keeps Redis from others for long.
--
-- KEYS  1 meta  2 queues  3.. partitions, one per group
-- ARGV  now or "" for TIME, what, stamp, groups; per group: queue, count, partitions
--
-- what: confirm  the broker has stored to them
--       release  it has not: what nobody else holds goes, what others hold or know stays
--       listed   a listing that began at stamp found them
--       prune    that listing was complete for these queues: known partitions that it did not find go
--       finish   and for the cluster: known queues that it did not find go; answers 1 while there are more
--       delete   the queues are gone, with their partitions; what is reserved stays

local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1e6 + t[2]
end
local what, stamp = ARGV[2], tonumber(ARGV[3])
local TTL = 86400000
local function plain(n) return string.format('%.0f', n) end
local stem = KEYS[2] .. ':'

if what == 'finish' then
  local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. plain(-stamp), '0', 'LIMIT', 0, 256)
  for _, queue in ipairs(gone) do
    redis.call('ZREM', KEYS[2], queue)
    redis.call('UNLINK', stem .. queue)
  end
  if #gone == 256 then return {now, 1} end
  redis.call('HSET', KEYS[1], 'seeded', plain(now))
  redis.call('PEXPIRE', KEYS[1], TTL / 2) -- before the names do: what is not listed again is unknown, never free
  redis.call('PEXPIRE', KEYS[2], TTL)
  return {now, 0}
end

local at, generation = 5, 0
for g = 1, tonumber(ARGV[4]) do
  local queue, count, key = ARGV[at], tonumber(ARGV[at + 1]), KEYS[2 + g]
  if what == 'delete' then
    local reserved = redis.call('ZRANGEBYSCORE', key, '(0', '+inf', 'WITHSCORES')
    redis.call('UNLINK', key) -- whatever its size
    for i = 1, #reserved, 2 do redis.call('ZADD', key, reserved[i + 1], reserved[i]) end
    if #reserved > 0 then redis.call('PEXPIRE', key, TTL) end
    if tonumber(redis.call('ZSCORE', KEYS[2], queue) or 0) < 0 then
      if #reserved > 0 then -- the queue is as reserved as they are
        redis.call('ZADD', KEYS[2], reserved[#reserved], queue)
      else
        redis.call('ZREM', KEYS[2], queue)
      end
    end
    generation = redis.call('HINCRBY', KEYS[1], 'generation', 1)
    if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], TTL / 2) end
  elseif what == 'prune' then
    redis.call('ZREMRANGEBYSCORE', key, '(' .. plain(-stamp), '0')
  elseif what == 'release' then
    for i = at + 1, at + 1 + count do
      local from, name = key, ARGV[i]
      if i == at + 1 then from, name = KEYS[2], queue end
      local score = tonumber(redis.call('ZSCORE', from, name) or 0)
      if score > 0 then
        if score % 1000 > 1 then redis.call('ZADD', from, plain(score - 1), name) else redis.call('ZREM', from, name) end
      end
    end
  else
    local score = what == 'listed' and -stamp or -now
    redis.call('ZADD', KEYS[2], 'LT', plain(score), queue)
    redis.call('PEXPIRE', KEYS[2], TTL)
    if count > 0 then
      for i = at + 2, at + 1 + count do redis.call('ZADD', key, 'LT', plain(score), ARGV[i]) end
      redis.call('PEXPIRE', key, TTL)
    end
  end
  at = at + 2 + count
end
return {now, generation}
