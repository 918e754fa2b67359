-- Decisions of one cluster, one by one in the order in which they were asked for: of each what was settled meanwhile, then
-- the ask, all or nothing, then a lease. What they have in common is read once and written once.
--
-- The arithmetic is that of bucket.go, digit for digit (fleettwin_test.go compares them): whole millionths of a
-- token, whole microseconds of the clock of this Redis. Every intermediate result stays below 2^53, where doubles are
-- exact. Limits come with the call, so a plan edit needs no write here and two gateways in the middle of one agree on
-- the balance.
--
-- KEYS  1 gateways with slots  2 slots of this gateway  3 names: meta  4 queues  5 retained bytes  6 month
--       7.. buckets, then partitions
-- ARGV  now or "" for TIME, gateway, how many calls, the calls; and names if there is but one: per group its queue, and
--       its partitions
--
-- A call is packed, every number a double, since a number of its own costs Redis more than to reckon with it:
--       act (0 settle only, 1 only look, 2 decide), share, of, died (1 or 0), epoch, buckets
--       slot: number or 0, microseconds to its deadline, most, mode
--       names: most queues, mode, most partitions, mode, groups
--       per bucket, in the order of evaluation: bit, own (1: of a key, 0: of the cluster), rate, burst, floor, need, fit,
--       takes (1, or 0: it is debited later), mode, line (1, or 2 for an ack), never, told; if that is 1 then also hint (-1e18:
--       none) give debit owe seq held back use wish
--       use over time, of bytes and then of the month: limited; if that is 1 then also most, mode, need, change of what is held,
--       all that is held, used, age of the last that was stored, divisor of what may be taken ahead, what is left of that,
--       and of bytes after an absence what is retained at least, and 1 if that was blocked
--       per group: partitions
-- The answer has a string for each call, likewise packed; it is empty when the call came too late.
--
-- Modes: 0 not asked, 1 enforce, 2 shadow. A bucket is one value:
--   level rem at rate burst, two lines of promises (owed, as of): to those who must wait for the debt of acks and to acks
--   themselves; kept; then per lease: gateway held expires seq
--
-- While gateways are missing the bucket refills with the share of the others, and the rest is kept: a gateway that is cut
-- off spends as much without asking. When it is back that was its, and is forgotten; when it counts as dead it was
-- nobody's, and returns. Level and kept together are what the bucket would have held, so neither exceeds the plan.
--
-- Use over time is a hash: total, what has been used; g, per gateway that holds some: gateway epoch held expires; at, when
-- the total was measured or loaded, without which it is only what gateways have said. Of bytes also d:<hundredth of a second>,
-- what was stored then and counts until a measure that is certainly later, measured, blocked and the cap for which that
-- was judged (measured.lua); of a month c:<gateway>, all that each gateway has counted.

local floor, min, max = math.floor, math.min, math.max
local pack, read = struct.pack, struct.unpack
local SECOND = 1e6
local LEASE, PENDING, BEAT, GRACE = 2e6, 60e6, 15e6, 10e6
local NAMES_TTL = 86400000

local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * SECOND + t[2]
end
local gateway = ARGV[2]
local me = tonumber(gateway)
local function plain(n) return string.format('%.0f', n) end

-- Of the call at hand: its text, how far that is read, and what it says of the fleet.
local text, at, share, of, died, epoch

-- growth is what rate yields in dt on top of rem, and the new remainder.
local function growth(rate, dt, rem)
  local s = floor(dt / SECOND)
  if s * rate > 4e15 then return 4e15, 0 end
  local u = dt - s * SECOND
  local high = floor(rate / SECOND)
  local low = (rate - high * SECOND) * u + rem
  local q = floor(low / SECOND)
  return s * rate + high * u + q, low - q * SECOND
end

-- speed is the rate while gateways are cut off: those spend their share without asking.
local function speed(b)
  if share < of then return floor(b.rate * share / of) end
  return b.rate
end

-- grow refills to a time. Leased tokens keep their place: a gateway may still spend them, so only the rest refills.
local function grow(b, t)
  local dt = t - b.at
  if dt <= 0 then return end
  b.at = t
  local cap = b.burst - b.out
  if b.level < cap then
    local grown, rem = growth(speed(b), dt, b.rem)
    if share < of then b.kept = b.kept + max(0, growth(b.rate, dt, 0) - grown) end
    if grown >= cap - b.level then
      b.level, b.rem = cap, 0
    else
      b.level, b.rem = b.level + grown, rem
    end
  end
  b.kept = max(0, min(b.kept, cap - b.level))
end

-- free ends what was kept once nobody is missing; it is never more than there is room for.
local function free(b)
  if share < of or b.kept == 0 then return end
  if died == 1 then b.level = b.level + b.kept end
  b.kept, b.dirty = 0, true
end

-- refill brings a bucket up to now, in steps: a lease keeps its place until the instant it expires.
local function refill(b)
  while true do
    local first
    for i, l in ipairs(b.leases) do
      if l[3] <= now and (not first or l[3] < b.leases[first][3]) then first = i end
    end
    if not first then break end
    local l = table.remove(b.leases, first)
    grow(b, l[3])
    b.out, b.dirty = b.out - l[2], true
  end
  grow(b, now)
end

-- left is what remains of a line of promises as of now; a line is {owed, as of}.
local function left(b, line)
  local owed, since = line[1], line[2]
  if owed == 0 or b.at <= since then return owed end
  local grown = min(owed, (growth(speed(b), b.at - since, 0)))
  return max(0, owed - grown - floor(grown / 3))
end

local function give(b, n)
  b.level = b.level + n
  if b.level >= b.burst - b.out then b.level, b.rem = b.burst - b.out, 0 end
  for _, line in ipairs(b.lines) do line[1] = max(0, line[1] - n) end
end

-- promise refuses a caller that wants need and fits at the level fit; bucket.promise of Go tells it the wait.
local function promise(b)
  local missing = b.fit - b.level - b.use
  local owed, queued = missing, left(b, b.lines[b.line])
  if queued > 0 then
    local behind = queued + b.need
    if behind > owed and behind - owed <= 60 * speed(b) then owed = behind end
  end
  b.lines[b.line], b.dirty = {owed, b.at}, true
end

-- load reads what is saved of a bucket; of one that is not, the call at hand says all.
local function load(key)
  local b = {key = key, out = 0, kept = 0, leases = {}, lines = {{0, 0}, {0, 0}}}
  local saved = redis.call('GET', key)
  if not saved then return b end
  local v = cmsgpack.unpack(saved)
  b.level, b.rem, b.at, b.rate, b.burst = v[1], v[2], v[3], v[4], v[5]
  b.lines, b.kept = {{v[6], v[7]}, {v[8], v[9]}}, v[10]
  for i = 11, #v, 4 do
    b.leases[#b.leases + 1] = {v[i], v[i + 1], v[i + 2], v[i + 3]}
    b.out = b.out + v[i + 1]
  end
  refill(b)
  for _, l in ipairs(b.leases) do
    if l[1] == me then b.mine = l end
  end
  return b
end

-- hear reads what the call says of a bucket.
local function hear(b)
  local rate, burst, told
  b.bit, b.own, rate, burst, b.floor, b.need, b.fit, b.takes, b.mode, b.line, b.never, told, at =
    read('<dddddddddddd', text, at)
  b.told, b.seq, b.use, b.wish, b.grant = told == 1, 0, 0, 0, 0
  if b.told then
    b.hint, b.give, b.debit, b.owe, b.seq, b.held, b.back, b.use, b.wish, at = read('<ddddddddd', text, at)
  end
  if not b.level then
    b.level, b.rem, b.at, b.rate, b.burst, b.dirty = burst, 0, now, rate, burst, true
    return
  end
  free(b)
  if b.rate ~= rate or b.burst ~= burst then -- another plan: balances are kept, promises were made at another speed
    b.rate, b.burst, b.rem, b.kept, b.lines, b.dirty = rate, burst, 0, 0, {{0, 0}, {0, 0}}, true
    b.level = max(min(b.level, burst - b.out), b.floor)
  end
end

-- settle enters what this gateway has to say of a bucket since its last call.
local function settle(b)
  if not b.told then return end
  if b.seq > 0 then
    if b.mine then
      b.out = b.out - b.mine[2]
    else
      b.mine = {me, 0, 0, 0}
      b.leases[#b.leases + 1] = b.mine
    end
    b.mine[2], b.mine[3], b.mine[4] = b.held, now + LEASE, b.seq
    b.out, b.dirty = b.out + b.held, true
  end
  if b.hint > -1e18 then
    b.level, b.kept, b.dirty = min(b.level, b.hint), 0, true
  end
  if b.level > b.burst - b.out then b.level, b.rem = b.burst - b.out, 0 end
  if b.back + b.give > 0 then
    give(b, b.back + b.give)
    b.dirty = true
  end
  if b.debit > 0 and b.level >= b.floor then
    b.level, b.dirty = b.level - b.debit, true
    if b.level < b.floor then b.level, b.rem = b.floor, 0 end
  end
  if b.owe > 0 then -- promised by this gateway, to heads
    local owed, horizon = left(b, b.lines[1]) + b.owe, 60 * b.rate
    if owed - max(0, SECOND - b.level) > horizon then owed = max(0, owed - horizon) end
    b.lines[1], b.dirty = {owed, b.at}, true
  end
end

local function save(b)
  if not b.dirty then return end
  local first, second = b.lines[1], b.lines[2]
  local v = {b.level, b.rem, b.at, b.rate, b.burst, first[1], first[2], second[1], second[2], b.kept}
  for _, l in ipairs(b.leases) do
    for i = 1, 4 do v[#v + 1] = l[i] end
  end
  local ttl = 2592000000
  if b.rate > 0 then ttl = min(ttl, floor((b.burst - b.level) * 1000 / b.rate)) end
  redis.call('SET', b.key, cmsgpack.pack(v), 'PX', string.format('%.0f', ttl + 60000))
end

-- purse is a limit over time, to be read when a call is about it. A gateway's record of an earlier epoch, before an absence,
-- is not gone on from.
local function purse(key, month)
  return {key = key, month = month, total = 0, others = 0, counted = 0, rest = {}, stored = {}}
end

local function open(p)
  p.open = true
  local v = redis.call('HMGET', p.key, 'g', 'total', 'at', 'c:' .. gateway, 'blocked', 'measured', 'most')
  p.total, p.at, p.counted, p.blocked = tonumber(v[2] or 0), tonumber(v[3]), tonumber(v[4] or 0), v[5] == '1'
  p.measured, p.judged = tonumber(v[6] or 0), tonumber(v[7])
  local g = v[1] and cmsgpack.unpack(v[1]) or {}
  for i = 1, #g, 4 do
    if g[i] == me then
      p.mine = {g[i + 1], g[i + 2]}
    elseif g[i + 3] > now then
      p.others = p.others + g[i + 2]
      for j = i, i + 3 do p.rest[#p.rest + 1] = g[j] end
    end
  end
end

-- listen reads what the call says of a limit over time.
local function listen(p)
  local limited
  limited, at = read('<d', text, at)
  p.limited, p.grant = limited == 1, 0
  if not p.limited then return end
  p.most, p.mode, p.need, p.hold, p.said, p.used, p.age, p.share, p.left, p.least, p.shut, at =
    read('<ddddddddddd', text, at)
  if not p.open then open(p) end
end

-- enter takes what this gateway has used and no longer holds.
local function enter(p)
  if not p.limited then return end
  if p.mine and p.mine[1] == epoch then
    p.held, p.dirty = max(0, p.mine[2] + p.hold), p.dirty or p.hold ~= 0
  else
    p.held, p.dirty = p.said, p.dirty or p.said > 0 or p.mine ~= nil
  end
  if p.month then
    if p.used > p.counted then
      p.total = p.total + p.used - p.counted
      p.counted, p.told, p.dirty = p.used, true, true
    end
  elseif p.used > 0 then
    local slot = floor((now - p.age) / 1e4)
    if not p.at or slot + 1 > floor(p.at / 1e4) then
      p.total, p.dirty = p.total + p.used, true
      p.stored[slot] = (p.stored[slot] or 0) + p.used
    end
  end
  if p.least > p.total then -- this Redis stood still while others went on
    p.total, p.dirty = p.least, true
  end
  if p.shut == 1 and not p.blocked then
    p.blocked, p.judging, p.dirty = true, true, true
  end
  if not p.month and p.judged ~= p.most then -- another plan is judged afresh
    p.blocked, p.judging, p.dirty = p.at ~= nil and p.measured >= p.most, true, true
  end
  if p.judging then p.judged = p.most end
end

-- full reports that the ask does not fit: the batch that crosses the cap on bytes is the last, and one that would cross the
-- allowance of the month does not pass.
local function full(p)
  local used = p.total + p.others + p.held
  if p.month then return used + p.need > p.most end
  return p.blocked or used >= p.most
end

-- hold notes what this gateway holds after a call.
local function hold(p)
  if p.limited and (p.held > 0 or p.mine) then p.mine = {epoch, p.held} end
end

local function keep(p)
  if not p.dirty then return end
  local g = p.rest
  if p.mine then
    for _, x in ipairs({me, p.mine[1], p.mine[2], now + PENDING}) do g[#g + 1] = x end
  end
  local fields = {'g', cmsgpack.pack(g), 'total', plain(p.total)}
  if p.told then
    fields[#fields + 1] = 'c:' .. gateway
    fields[#fields + 1] = plain(p.counted)
  end
  if p.judging then
    for _, x in ipairs({'blocked', p.blocked and '1' or '0', 'most', plain(p.judged)}) do fields[#fields + 1] = x end
  end
  redis.call('HSET', p.key, unpack(fields))
  for slot, n in pairs(p.stored) do redis.call('HINCRBY', p.key, 'd:' .. plain(slot), plain(n)) end
  redis.call('PEXPIRE', p.key, p.month and 3456000000 or 86400000)
end

local buckets, purses = {}, {purse(KEYS[5], false), purse(KEYS[6], true)}
local bytes, month = purses[1], purses[2]
local stem = string.sub(KEYS[2], 1, -#gateway - 1)

-- Of the call at hand, too: which limits it is over, whether that denies it, and the first rate that does.
local over, denied, rated

local function judge(bit, mode, is_over)
  if mode == 0 or not is_over then return end
  over = over + bit
  if mode == 1 then denied = true end
end

local function exceeds(b) return b.never == 1 or b.level + b.use < b.fit end

-- slots counts those that are taken. Those of a gateway that no longer beats are gone, and those long past their deadline.
local function slots()
  local used, earliest = 0, -1
  local holders = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
  for i = 1, #holders, 2 do
    local key = stem .. holders[i]
    if tonumber(holders[i + 1]) <= now then
      redis.call('UNLINK', key)
      redis.call('ZREM', KEYS[1], holders[i])
    else
      redis.call('ZREMRANGEBYSCORE', key, '-inf', plain(now - GRACE))
      local n = redis.call('ZCARD', key)
      if n > 0 then
        used = used + n
        local soonest = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
        if earliest < 0 or soonest < earliest then earliest = soonest end
      end
    end
  end
  if earliest >= 0 then earliest = max(0, earliest - now) end
  return used, earliest
end

-- names looks at the names that may be new, and returns whether Redis knows the cluster's, their generation, what there is and
-- what the ask adds, and those to reserve. A score below zero is a known name and when it was confirmed, in microseconds.
-- Above zero it is a reservation: when it ends, in milliseconds, followed by three digits for the number of requests that
-- hold it.
local function names(groups, most_queues, queue_mode, most_partitions, partition_mode)
  local queues, new_queues, partitions, grows_to, fresh = 0, 0, 0, 0, {}
  local meta = redis.call('HMGET', KEYS[3], 'seeded', 'generation')
  local generation = tonumber(meta[2] or 0)
  if not meta[1] then return 0, generation, 0, 0, 0, 0, fresh end
  local stamp = plain(floor(now / 1000) * 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '(0', stamp)
  queues = redis.call('ZCARD', KEYS[4])
  local word = 4
  for g = 1, groups do
    local queue, key, count = ARGV[word + 1], KEYS[6 + #buckets + g]
    word = word + 1
    count, at = read('<d', text, at)
    local score = tonumber(redis.call('ZSCORE', KEYS[4], queue))
    if not score then new_queues = new_queues + 1 end
    if not score or score > 0 then fresh[#fresh + 1] = {KEYS[4], queue, score or 0} end
    if count > 0 then
      redis.call('ZREMRANGEBYSCORE', key, '(0', stamp)
      local there, new = redis.call('ZCARD', key), 0
      for _ = 1, count do
        word = word + 1
        local partition = ARGV[word]
        local held = tonumber(redis.call('ZSCORE', key, partition))
        if not held then new = new + 1 end
        if not held or held > 0 then fresh[#fresh + 1] = {key, partition, held or 0} end
      end
      partitions = max(partitions, there + new)
      if new > 0 then grows_to = max(grows_to, there + new) end
    end
  end
  judge(4, queue_mode, new_queues > 0 and queues + new_queues > most_queues)
  judge(8, partition_mode, grows_to > most_partitions)
  return 1, generation, queues, new_queues, partitions, grows_to, fresh
end

-- take gives a call that is not denied what it asks for.
local function take(slot, deadline, fresh)
  for _, b in ipairs(buckets) do
    if b.mode > 0 and b.takes == 1 and not exceeds(b) then
      b.level, b.dirty = b.level - b.need + b.use, true
      if b.use > 0 then
        b.mine[2], b.out = b.mine[2] - b.use, b.out - b.use
      end
    end
  end
  if slot > 0 then
    redis.call('ZADD', KEYS[2], plain(now + deadline), plain(slot))
    redis.call('ZADD', KEYS[1], plain(now + BEAT), gateway)
    redis.call('PEXPIRE', KEYS[1], 60000)
    redis.call('PEXPIRE', KEYS[2], 60000)
  end
  local ends = floor((now + PENDING) / 1000) * 1000
  for _, f in ipairs(fresh) do
    redis.call('ZADD', f[1], plain(ends + min(f[3] % 1000 + 1, 999)), f[2])
    redis.call('PEXPIRE', f[1], NAMES_TTL)
  end
end

-- decide runs the call at hand and returns its answer.
local function decide()
  local act, count, slot, deadline, most_slots, slot_mode
  local most_queues, queue_mode, most_partitions, partition_mode, groups
  act, share, of, died, epoch, count, slot, deadline, most_slots, slot_mode,
    most_queues, queue_mode, most_partitions, partition_mode, groups, at = read('<ddddddddddddddd', text, 1)
  for i = 1, count do
    local b = buckets[i]
    if not b then
      b = load(KEYS[6 + i])
      buckets[i] = b
    end
    hear(b)
  end
  listen(bytes)
  listen(month)
  for _, p in ipairs(purses) do
    if p.limited and p.mine and p.mine[1] > epoch then return '' end
  end
  for _, b in ipairs(buckets) do
    if b.seq > 0 and b.mine and b.mine[4] >= b.seq then return '' end -- given up long ago
  end
  for _, b in ipairs(buckets) do settle(b) end
  enter(bytes)
  enter(month)

  over, denied, rated = 0, false, nil
  for _, b in ipairs(buckets) do
    b.before = pack('<ddddd', b.level + b.use, b.rem, left(b, b.lines[1]), left(b, b.lines[2]), speed(b))
    judge(b.bit, b.mode, exceeds(b))
    if denied and not rated then rated = b end
  end
  local used, earliest, fresh = 0, -1, {}
  if slot > 0 then used, earliest = slots() end
  local known, generation, queues, new_queues, partitions, grows_to = 0, 0, 0, 0, 0, 0
  if groups > 0 then
    known, generation, queues, new_queues, partitions, grows_to, fresh =
      names(groups, most_queues, queue_mode, most_partitions, partition_mode)
  end
  judge(16, slot_mode, used >= most_slots)
  for i, p in ipairs(purses) do
    if p.limited and p.mode > 0 then judge(128 * 2 ^ i, p.mode, full(p)) end
  end
  local bytes_found, month_found = bytes.total + bytes.others, month.total + month.others

  if act > 0 and rated and rated.never == 0 then
    -- A request waits until all its buckets have room: sent back for one it would only meet the other. But a key that is
    -- over its own rate gets no place in its cluster's lines.
    local after = false
    for _, b in ipairs(buckets) do
      if b == rated then
        after = true
        promise(b)
      elseif after and b.own >= rated.own and b.mode == 1 and b.never == 0 and exceeds(b) then
        promise(b)
      end
    end
  end
  if act == 2 and not denied then take(slot, deadline, fresh) end
  if act ~= 1 and not denied then
    for _, p in ipairs(purses) do
      if p.limited then
        if act == 2 and p.mode > 0 and p.need > 0 then
          p.held, p.dirty = p.held + p.need, true
        end
        local ahead = 0
        if p.share > 0 and p.at and not p.blocked then
          ahead = floor((p.most - p.total - p.others - p.held) / p.share) - p.left
        end
        if ahead > 0 then
          p.grant, p.held, p.dirty = ahead, p.held + ahead, true
        end
      end
    end
    for _, b in ipairs(buckets) do
      if b.wish > 0 and b.seq > 0 and b.level > 0 then
        b.grant = min(b.wish, b.level)
        b.level, b.mine[2], b.out = b.level - b.grant, b.mine[2] + b.grant, b.out + b.grant
      end
    end
  end
  hold(bytes)
  hold(month)

  local answer = {pack('<dddddddddddddddddd', over, denied and 1 or 0, used, earliest, known, generation,
    queues, new_queues, partitions, grows_to,
    bytes.limited and bytes.at and 1 or 0, bytes_found, bytes.limited and bytes.blocked and 1 or 0, bytes.grant,
    month.limited and month.at and 1 or 0, month_found, month.counted, month.grant)}
  for _, b in ipairs(buckets) do
    answer[#answer + 1] = b.before
    answer[#answer + 1] = pack('<d', b.grant)
  end
  return table.concat(answer)
end

local answers = {}
for i = 1, tonumber(ARGV[3]) do
  text = ARGV[3 + i]
  answers[i] = decide()
end
keep(bytes)
keep(month)
for _, b in ipairs(buckets) do save(b) end
return answers
