package quota

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newBucket(perSecond, burst float64) *bucket {
	b := new(bucket)
	b.configure(micro(perSecond), micro(burst), 0)
	return b
}

// tryTake is what a rule and commit do together.
func (b *bucket) tryTake(n, now int64) bool {
	b.refill(now)
	if b.level < n {
		return false
	}
	b.take(n)
	return true
}

func TestBucketRules(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	tests := map[string]func(t *testing.T){
		"starts full": func(t *testing.T) {
			b := newBucket(10, 20)
			if !b.tryTake(20*token, 0) || b.tryTake(token, 0) {
				t.Fatalf("want exactly the burst, level %d", b.level)
			}
		},
		"refills by elapsed time to the nanosecond": func(t *testing.T) {
			b := newBucket(3, 1)
			b.tryTake(token, 0)
			if b.tryTake(token, second/3) {
				t.Fatal("a third of a second minus a third of a nanosecond is too early")
			}
			if !b.tryTake(token, second/3+1) {
				t.Fatal("refused although the token is there")
			}
		},
		"refills the same in many steps as in one": func(t *testing.T) {
			one, many := newBucket(0.7, 5), newBucket(0.7, 5)
			one.take(5 * token)
			many.take(5 * token)
			for now := int64(0); now <= 3*second; now += 777_777 {
				many.refill(now)
			}
			one.refill(3 * second)
			many.refill(3 * second)
			if one.level != many.level || one.rem != many.rem {
				t.Fatalf("one step %d+%d, many steps %d+%d", one.level, one.rem, many.level, many.rem)
			}
		},
		"an earlier now changes nothing": func(t *testing.T) {
			b := newBucket(10, 20)
			b.tryTake(20*token, second)
			before := *b
			b.refill(0)
			if *b != before {
				t.Fatalf("got %+v, want %+v", *b, before)
			}
		},
		"an upgrade gives no tokens": func(t *testing.T) {
			b := newBucket(10, 20)
			b.configure(micro(100), micro(200), 0)
			if b.level != 20*token {
				t.Fatalf("level %d, want the old 20 tokens", b.level)
			}
			b.refill(second)
			if b.level != 120*token {
				t.Fatalf("level %d, want 20 plus one second at the new rate", b.level)
			}
		},
		"the time before an edit counts at the old rate": func(t *testing.T) {
			b := newBucket(1, 100)
			b.take(100 * token)
			b.configure(micro(50), micro(100), 10*second)
			if b.level != 10*token {
				t.Fatalf("level %d, want 10 tokens", b.level)
			}
		},
		"a downgrade clamps": func(t *testing.T) {
			b := newBucket(100, 200)
			b.configure(micro(10), micro(20), 0)
			if b.level != 20*token {
				t.Fatalf("level %d, want 20 tokens", b.level)
			}
		},
		"an edit that changes nothing keeps promises": func(t *testing.T) {
			b := newBucket(10, 1)
			b.take(token)
			b.promise(&b.line, token, token)
			before := *b
			b.configure(micro(10), micro(1), 0)
			if *b != before {
				t.Fatalf("got %+v, want %+v", *b, before)
			}
		},
		"debt ends at the floor and a deeper balance is left alone": func(t *testing.T) {
			b := newBucket(10, 20)
			b.debit(5000*token, -100*token)
			if b.level != -100*token {
				t.Fatalf("level %d, want -100 tokens", b.level)
			}
			b.debit(token, -50*token)
			if b.level != -100*token {
				t.Fatalf("a debit must not raise the level: %d", b.level)
			}
		},
		"delivery debt is bounded in tokens and in time": func(t *testing.T) {
			if got := newBucket(100, 200).debtFloor(); got != -1000*token {
				t.Fatalf("floor %d, want 5 bursts", got)
			}
			if got := newBucket(2, 200).debtFloor(); got != -120*token {
				t.Fatalf("floor %d, want 60 s of rate", got)
			}
		},
		"a burst below one token is one": func(t *testing.T) {
			b := newBucket(0.1, 0.2)
			if !b.tryTake(token, 0) || b.tryTake(token, 10*second-1) || !b.tryTake(token, 10*second) {
				t.Fatalf("want one token per ten seconds, level %d", b.level)
			}
		},
		"zero is blocked": func(t *testing.T) {
			for _, b := range []*bucket{newBucket(0, 10), newBucket(10, 0)} {
				if !b.blocked() {
					t.Fatalf("%+v is not blocked", b)
				}
			}
		},
		"huge numbers do not overflow": func(t *testing.T) {
			b := newBucket(math.MaxFloat64, math.Inf(1))
			b.debit(math.MaxInt64/4, b.debtFloor())
			b.refill(math.MaxInt64)
			if b.level != b.burst {
				t.Fatalf("level %d, want %d", b.level, b.burst)
			}
			slow := newBucket(1e-6, maxTokens)
			slow.take(slow.burst)
			if got := slow.untilGrown(slow.burst); got != math.MaxInt64 {
				t.Fatalf("wait %d, want saturation", got)
			}
		},
		"returned tokens never exceed the burst": func(t *testing.T) {
			b := newBucket(10, 20)
			b.take(5 * token)
			b.refill(second)
			b.give(5 * token)
			if b.level != 20*token {
				t.Fatalf("level %d, want 20 tokens", b.level)
			}
		},
		"the k-th refused is told k times the gap": func(t *testing.T) {
			b := newBucket(10, 1)
			b.take(token)
			for k := int64(1); k <= 50; k++ {
				if got, want := b.promise(&b.line, token, token), time.Duration(k*100*ms); got != want {
					t.Fatalf("caller %d: wait %v, want %v", k, got, want)
				}
			}
		},
		"an early return is told the rest of its wait": func(t *testing.T) {
			b := newBucket(10, 100)
			b.take(100 * token)
			if got := b.promise(&b.line, 100*token, 100*token); got != 10*time.Second {
				t.Fatalf("wait %v, want 10 s", got)
			}
			for _, at := range []int64{8000, 9600, 9920, 9984} { // each a fifth early
				b.refill(at * ms)
				if got, want := b.promise(&b.line, 100*token, 100*token), time.Duration((10_000-at)*ms); got != want {
					t.Fatalf("at %d ms: wait %v, want %v", at, got, want)
				}
			}
		},
		"a hammering caller cannot push others further than the horizon": func(t *testing.T) {
			b := newBucket(10, 1)
			b.take(token)
			for range 100_000 {
				if got := b.promise(&b.line, token, token); got > promiseSeconds*time.Second+100*time.Millisecond {
					t.Fatalf("wait %v", got)
				}
			}
		},
		"promises drain when nobody comes back": func(t *testing.T) {
			b := newBucket(10, 1)
			b.take(token)
			for range 100 {
				b.promise(&b.line, token, token)
			}
			if b.refill(5 * second); b.full() {
				t.Fatal("forgotten too early")
			}
			if b.refill(10 * second); !b.full() {
				t.Fatalf("%+v remembers promises whose time has passed", b)
			}
		},
		"room for a larger batch is filled from when it was asked for": func(t *testing.T) {
			b := newBucket(5, 2)
			b.largest = 20 * token
			b.makeRoom(4*token, 10*second) // it has been full for all that time
			if b.level != 2*token {
				t.Fatalf("%v tokens at once, its part of the burst is 2", tokens(b.level))
			}
			if b.refill(10*second + second/5); b.level != 3*token {
				t.Fatalf("%v tokens after the time of one", tokens(b.level))
			}
			if b.refill(20 * second); b.level != 4*token {
				t.Fatalf("%v tokens in the end, want room for 4", tokens(b.level))
			}
		},
		"returned tokens shorten the line": func(t *testing.T) {
			b := newBucket(10, 10)
			b.take(10 * token)
			for range 10 {
				b.promise(&b.line, token, token)
			}
			b.give(10 * token)
			b.take(10 * token)
			if got := b.promise(&b.line, token, token); got != 100*time.Millisecond {
				t.Fatalf("wait %v, want 100ms", got)
			}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
}

// exactBucket is the textbook bucket in rational numbers: tokens and seconds without rounding.
type exactBucket struct{ rate, burst, level, at *big.Rat }

func (e *exactBucket) refill(now int64) {
	at := big.NewRat(now, second)
	if at.Cmp(e.at) <= 0 {
		return
	}
	grown := new(big.Rat).Sub(at, e.at)
	e.level.Add(e.level, grown.Mul(grown, e.rate))
	e.clamp()
	e.at = at
}

func (e *exactBucket) clamp() {
	if e.level.Cmp(e.burst) > 0 {
		e.level.Set(e.burst)
	}
}

func rat(m int64) *big.Rat { return big.NewRat(m, token) }

func TestBucketIsTheTextbookBucket(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(1, 2000*token).Draw(t, "rate")
		burst := rapid.Int64Range(token, 500*token).Draw(t, "burst")
		b := new(bucket)
		b.configure(rate, burst, 0)
		e := &exactBucket{rate: rat(rate), burst: rat(burst), level: rat(burst), at: new(big.Rat)}
		now := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 2*second).Draw(t, "dt")
			b.refill(now)
			e.refill(now)
			n := rapid.Int64Range(1, 300).Draw(t, "n") * token
			switch rapid.SampledFrom([]string{"take", "take", "take", "debit", "give", "edit"}).Draw(t, "op") {
			case "take":
				want := e.level.Cmp(rat(n)) >= 0
				if got := b.level >= n; got != want {
					t.Fatalf("take %d: fits %v, want %v (level %d+%d, exact %s)", n, got, want, b.level, b.rem, e.level)
				}
				if want {
					b.take(n)
					e.level.Sub(e.level, rat(n))
					break
				}
				if n > burst {
					break
				}
				wait := int64(b.untilGrown(n - b.level))
				early, due := *b, *b
				early.refill(now + wait - 1)
				due.refill(now + wait)
				if early.level >= n || due.level < n {
					t.Fatalf("wait %d ns is not the least one", wait)
				}
			case "debit":
				b.debit(n, b.debtFloor())
				if floor := rat(b.debtFloor()); e.level.Cmp(floor) > 0 {
					if e.level.Sub(e.level, rat(n)); e.level.Cmp(floor) < 0 {
						e.level.Set(floor)
					}
				}
			case "give":
				b.give(n)
				e.level.Add(e.level, rat(n))
				e.clamp()
			case "edit":
				burst = rapid.Int64Range(token, 500*token).Draw(t, "burst")
				if burst == b.burst {
					break
				}
				// An edit drops less than a millionth of a token, in the plan's favour.
				e.level.Sub(e.level, big.NewRat(b.rem, token*second))
				b.configure(rate, burst, now)
				e.burst = rat(burst)
				e.clamp()
			}
			exact := new(big.Rat).Add(rat(b.level), big.NewRat(b.rem, token*second))
			if exact.Cmp(e.level) != 0 {
				t.Fatalf("level %s, want %s", exact, e.level)
			}
		}
	})
}

func TestEveryWindowHoldsBurstPlusRate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(1, 100*token).Draw(t, "rate")
		burst := rapid.Int64Range(token, 50*token).Draw(t, "burst")
		b := new(bucket)
		b.configure(rate, burst, 0)
		type taken struct{ at, n int64 }
		var log []taken
		now := int64(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += rapid.Int64Range(0, second).Draw(t, "dt")
			n := rapid.Int64Range(1, 20).Draw(t, "n") * token
			if b.tryTake(n, now) {
				log = append(log, taken{now, n})
			}
		}
		for i := range log {
			sum := int64(0)
			for _, j := range log[i:] {
				sum += j.n
				most := new(big.Rat).Mul(rat(rate), big.NewRat(j.at-log[i].at, second))
				if most.Add(most, rat(burst)).Cmp(rat(sum)) < 0 {
					t.Fatalf("%d admitted within %d ns, more than %s", sum, j.at-log[i].at, most)
				}
			}
		}
	})
}

func TestOverloadIsUsedUp(t *testing.T) {
	t.Parallel()
	for name, gap := range map[string]int64{"steady 2x": second / 20, "steady 1.5x": second / 15, "flood": second / 997} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket(10, 20)
			admitted := 0
			const seconds = 300
			for now := int64(0); now < seconds*second; now += gap {
				if b.tryTake(token, now) {
					admitted++
				} else {
					b.promise(&b.line, token, token)
				}
			}
			if most := 20 + 10*seconds; admitted > most || float64(admitted) < 0.99*float64(most) {
				t.Fatalf("admitted %d of %d", admitted, most)
			}
		})
	}
}
