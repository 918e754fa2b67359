-- What a broker has measured of a cluster's retained bytes. What was stored before the measure was asked for is in it.
-- KEYS 1 storage (decide.lua says what it holds)
-- ARGV when it was asked for, in microseconds of this Redis; bytes; the plan's cap, or -1
--
-- It sets the block at the cap, and ends it at 90 % of it. An older measure than the last changes nothing.
local floor = math.floor
local at, measured, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local function plain(n) return string.format('%.0f', n) end

local last = tonumber(redis.call('HGET', KEYS[1], 'at') or -1)
if at <= last then return {0} end
local slot, total = floor(at / 1e4), measured
local fields, gone = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #fields, 2 do
  local of = tonumber(string.match(fields[i], '^d:(%d+)$'))
  if of and of + 1 <= slot then
    gone[#gone + 1] = fields[i]
  elseif of then
    total = total + fields[i + 1]
  end
end
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
local blocked = redis.call('HGET', KEYS[1], 'blocked') or '0'
if most < 0 then
  blocked = '0'
elseif measured >= most then
  blocked = '1'
elseif total <= floor(most / 100) * 90 + floor(most % 100 * 90 / 100) then
  blocked = '0'
end
redis.call('HSET', KEYS[1], 'at', plain(at), 'measured', plain(measured), 'total', plain(total), 'blocked', blocked,
  'most', plain(most))
redis.call('PEXPIRE', KEYS[1], 86400000)
return {1}
