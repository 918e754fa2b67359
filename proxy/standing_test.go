package proxy

import (
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// patient is a broker as its probes see it, in the time of a synctest bubble.
type patient struct {
	alive, ready, draining atomic.Bool
	hangs                  atomic.Bool
	asked                  atomic.Int64 // for /livez
}

func (p *patient) ask(_ *broker, which probe) verdict {
	if which == livez {
		p.asked.Add(1)
	}
	switch {
	case p.hangs.Load() && which == livez:
		time.Sleep(livezTime)
		return verdict{}
	case p.hangs.Load():
		time.Sleep(readyzTime)
		return verdict{}
	case !p.alive.Load():
		return verdict{}
	}
	v := verdict{answered: true, draining: p.draining.Load()}
	v.ok = which == livez || p.ready.Load() && !v.draining
	return v
}

// clinic watches n brokers for the time of f.
func clinic(t *testing.T, n int, f func(p *pool, ps []*patient)) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		ps := newPools(log, &Config{ProbeInterval: time.Second}, &upstreamDialer{}, newCellTokens(nil))
		p := testPool(n)
		patients := map[*broker]*patient{}
		var list []*patient
		for _, b := range p.brokers() {
			x := &patient{}
			x.alive.Store(true)
			x.ready.Store(true)
			patients[b] = x
			list = append(list, x)
		}
		ps.ask = func(b *broker, which probe) verdict { return patients[b].ask(b, which) }
		for _, b := range p.brokers() {
			for which := range probes {
				ps.probers.Go(func() { ps.watch(ps.probing, b, which) })
			}
		}
		time.Sleep(1500 * time.Millisecond)
		f(p, list)
		ps.stop()
		ps.probers.Wait()
	})
}

// within waits for a word of the broker's and returns how long it took.
func within(t *testing.T, b *broker, word string, most time.Duration) time.Duration {
	t.Helper()
	begin := time.Now()
	for b.word() != word {
		if time.Since(begin) > most {
			t.Fatalf("after %v the broker is %s, want %s", most, b.word(), word)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(begin)
}

func TestABrokerThatDiesOrHangsIsOutWithinTwoAndAHalfSeconds(t *testing.T) {
	t.Parallel()
	for name, ail := range map[string]func(*patient){
		"dies": func(x *patient) { x.alive.Store(false) }, "hangs": func(x *patient) { x.hangs.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for phase := range 10 { // of the probes
				clinic(t, 3, func(p *pool, ps []*patient) {
					time.Sleep(time.Duration(phase) * 110 * time.Millisecond)
					ail(ps[0])
					within(t, p.brokers()[0], "out", 2500*time.Millisecond)
					for _, b := range p.brokers()[1:] {
						if b.word() != "ready" {
							t.Errorf("another one is %s", b.word())
						}
					}
				})
			}
		})
	}
}

func TestABrokerComesBackAfterThreeGoodProbes(t *testing.T) {
	t.Parallel()
	clinic(t, 1, func(p *pool, ps []*patient) {
		b := p.brokers()[0]
		ps[0].alive.Store(false)
		within(t, b, "out", 3*time.Second)
		ps[0].alive.Store(true)
		before := ps[0].asked.Load()
		within(t, b, "ready", 2*time.Second)
		if n := ps[0].asked.Load() - before; n < successesIn {
			t.Errorf("it is back after %d probes", n)
		}
	})
}

func TestOneBadProbeTakesNobodyOut(t *testing.T) {
	t.Parallel()
	s := streak{up: true}
	for i, c := range []struct{ ok, up bool }{
		{false, true}, {true, true}, {false, true}, {false, false}, {true, false}, {true, false}, {false, false}, {true, false}, {true, false}, {true, true},
	} {
		if s.note(c.ok); s.up != c.up {
			t.Fatalf("answer %d: up %v, want %v", i, s.up, c.up)
		}
	}
}

func TestADatabaseThatIsAwayLeavesBrokersAlive(t *testing.T) {
	t.Parallel()
	clinic(t, 3, func(p *pool, ps []*patient) {
		for _, x := range ps {
			x.ready.Store(false)
		}
		for _, b := range p.brokers() {
			within(t, b, "live", 2*time.Second)
		}
		if !p.any(needLive) || p.any(needReady) {
			t.Error("pushes and the rest are not kept apart")
		}
		for _, x := range ps {
			x.ready.Store(true)
		}
		for _, b := range p.brokers() {
			within(t, b, "ready", 2*time.Second)
			if b.risen.Load() != 0 {
				t.Error("a broker that never was away starts slowly")
			}
		}
	})
}

func TestABrokerThatDrainsGetsNothingNew(t *testing.T) {
	t.Parallel()
	clinic(t, 3, func(p *pool, ps []*patient) {
		b := p.brokers()[0]
		ps[0].draining.Store(true)
		within(t, b, "draining", 1200*time.Millisecond)
		if b.able(needLive) || b.able(needReady) {
			t.Error("it does")
		}
		ps[0].alive.Store(false) // it stops, and another process takes its place
		within(t, b, "out", 2500*time.Millisecond)
		ps[0].draining.Store(false)
		ps[0].alive.Store(true)
		within(t, b, "ready", 2*time.Second)
	})
}

func TestEjectionNeverGoesBelowHalfOfThePool(t *testing.T) {
	t.Parallel()
	for n, spared := range map[int]int{1: 0, 2: 1, 3: 1, 4: 2, 5: 2} {
		p := testPool(n)
		for _, b := range p.brokers() {
			b.failed()
		}
		out := 0
		for _, b := range p.brokers() {
			if !b.able(needLive) {
				out++
			}
		}
		if out != spared {
			t.Errorf("of %d brokers that cannot be reached %d are ejected, want %d", n, out, spared)
		}
		p = testPool(n)
		for _, b := range p.brokers() {
			for range lossesOut {
				b.lost()
			}
		}
		out = 0
		for _, b := range p.brokers() {
			if !b.able(needLive) {
				out++
			}
		}
		if out != spared {
			t.Errorf("of %d brokers that lose answers %d are ejected, want %d", n, out, spared)
		}
	}
}

func TestAFailedConnectionIsWorthMoreThanAProbeUnderWay(t *testing.T) {
	t.Parallel()
	p := testPool(2)
	b := p.brokers()[0]
	seen := b.seenFaults()
	b.failed()
	for range successesIn {
		b.probed(livez, verdict{answered: true, ok: true}, seen, time.Now())
	}
	if b.able(needLive) {
		t.Error("probes that began before the failure bring a broker back")
	}
}

func TestLostAnswersEjectForLongerEachTime(t *testing.T) {
	t.Parallel()
	clinic(t, 3, func(p *pool, _ []*patient) {
		b := p.brokers()[0]
		lose := func() {
			for range lossesOut {
				b.fell(sent, syscall.ECONNRESET)
			}
		}
		for want := firstEjection; want <= 8*firstEjection; want *= 2 {
			lose()
			if b.word() != "ejected" {
				t.Fatalf("the broker is %s", b.word())
			}
			if got := within(t, b, "ready", 2*longestEjection); got < want || got > want+1200*time.Millisecond {
				t.Errorf("ejected for %v, want %v", got, want)
			}
		}
		time.Sleep(3 * longestEjection) // calm
		lose()
		if got := within(t, b, "ready", 2*longestEjection); got > firstEjection+1200*time.Millisecond {
			t.Errorf("after a calm it was ejected for %v", got)
		}
	})
}

func TestFaultsOfTheClientOrTheDeadlineSpeakAgainstNobody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		far progress
		err error
	}{
		"an answer that is late":        {sent, &net.OpError{Err: syscall.ETIMEDOUT}},
		"a call that was given up":      {sent, errClientGone},
		"a connection we closed":        {sent, net.ErrClosed},
		"no descriptor left":            {unsent, syscall.EMFILE},
		"no port left":                  {unsent, syscall.EADDRNOTAVAIL},
		"a dial that was given up":      {unsent, errDraining},
		"an answer that makes no sense": {partial, errTooLongForOldHTTP},
	} {
		p := testPool(3)
		b := p.brokers()[0]
		for range 2 * lossesOut {
			b.fell(c.far, c.err)
		}
		if !b.able(needReady) {
			t.Errorf("%s: the broker is %s", name, b.word())
		}
	}
}

func TestAnAnswerEndsARowOfLosses(t *testing.T) {
	t.Parallel()
	p := testPool(3)
	b := p.brokers()[0]
	for range 3 * lossesOut {
		b.lost()
		b.losses.Store(0) // as answered does
	}
	if !b.able(needReady) {
		t.Errorf("the broker is %s", b.word())
	}
	if n := b.lossesTotal.Load(); n != 3*lossesOut {
		t.Errorf("%d losses are counted", n)
	}
}

// TestFaultsDoNotMakeProbesAFlood holds that a crowd of failing requests has the broker asked at most twenty times per
// interval.
func TestFaultsDoNotMakeProbesAFlood(t *testing.T) {
	t.Parallel()
	clinic(t, 3, func(p *pool, ps []*patient) {
		ps[0].alive.Store(false)
		before := ps[0].asked.Load()
		for range 1000 {
			p.brokers()[0].failed()
			time.Sleep(time.Millisecond)
		}
		if n := ps[0].asked.Load() - before; n > kickGap+2 || n < 2 {
			t.Errorf("asked %d times in a second", n)
		}
	})
}
