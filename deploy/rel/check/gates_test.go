package check

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// behind tells of a cluster behind two gateways.
func (s *story) behind(c hist.Cluster) {
	c.Name = "c"
	s.h.Clusters = append(s.h.Clusters, c)
	s.h.Topology.Gateways, s.h.Topology.Quota = []string{"gw1", "gw2"}, "exact"
}

// request is a request that has not come back; "" is a read.
func (s *story) request(client int, a hist.AskArgs) *open {
	a.Cluster = "c"
	if a.Does == "" {
		a.Does = hist.DoesRead
	}
	return s.as(client, "gw1", hist.Ask, &a)
}

// let is one that is let in at once, refuse one that is not.
func (s *story) let(a hist.AskArgs) { s.request(1, a).ok(&hist.AskAnswer{Mode: "enforce"}) }

func (s *story) refuse(status int, a hist.AskArgs, v hist.AskAnswer) {
	s.request(1, a).back(hist.Fail, status, &v)
}

func (s *story) noted(f hist.Func, what any) { s.put(hist.Event{Kind: hist.Noted, F: f, A: what}) }

// hang is a client that goes away in the middle of a request.
func (o *open) hang() {
	e := o.e
	e.Kind, e.A, e.Err = hist.Info, nil, hungUp
	o.s.put(e)
}

var tenASecond = hist.Cluster{Workload: "w", Limits: hist.Limits{RequestRate: 10, RequestBurst: 5}}

// flood asks every 20 ms for a time, and is let in every so often.
func (s *story) flood(lasts, every int64) {
	for end := s.now + lasts; s.now < end; s.now += 18 * ms {
		if a := (hist.AskArgs{Part: "flood"}); s.now/every != (s.now-20*ms)/every {
			s.let(a)
		} else {
			s.refuse(429, a, hist.AskAnswer{Limit: "req"})
		}
	}
}

// edit changes the rate of the plan.
func (s *story) edit(rate float64) {
	n := hist.PlanNote{Cluster: "c", Limits: hist.Limits{RequestRate: rate, RequestBurst: 5}}
	s.noted(hist.Edit, &n)
	s.now += 50 * ms
	n.Made = true
	s.noted(hist.Edit, &n)
}

// times are requests of a victim that take so long.
func (s *story) times(part string, took int64) {
	for range 60 {
		o := s.request(1, hist.AskArgs{Part: part})
		s.now += took
		o.ok(&hist.AskAnswer{})
	}
}

var wait4 = hist.AskArgs{Does: hist.DoesPoll, WaitMs: 4000}

// brokerDown is a broker that has failed for three seconds.
func brokerDown(s *story) hist.Fault {
	f := hist.Fault{Name: "N4", Action: "cut", Target: "br1", Effect: "felt"}
	s.fault(1, hist.FaultBegins, f)
	s.fault(1, hist.FaultObserved, f)
	s.now += 3 * second
	return f
}

var pooled = []hist.Queue{{Name: "q", Workload: "G11"}}

var badGates = []bad{
	{"a window admits one request too many", C1, nil, func(s *story) {
		s.behind(tenASecond)
		for range 6 {
			s.let(hist.AskArgs{})
		}
	}, "6 requests were admitted"},
	{"a batch takes messages that are not there", C1, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{MessageRate: 10, MessageBurst: 5}})
		s.let(hist.AskArgs{Does: hist.DoesPush, Messages: 4})
		s.now += 50 * ms
		s.let(hist.AskArgs{Does: hist.DoesPush, Messages: 2})
	}, "6 messages were admitted"},
	{"an edit gives more than the better of two plans", C1, nil, func(s *story) {
		s.behind(tenASecond)
		s.noted(hist.Edit, &hist.PlanNote{Cluster: "c", Limits: hist.Limits{RequestRate: 20, RequestBurst: 5}})
		for range 6 {
			s.let(hist.AskArgs{})
		}
	}, "and 5.2 are allowed"},
	{"an edit that gateways have heard of gives more than its plan", C1, nil, func(s *story) {
		s.behind(tenASecond)
		f := hist.Fault{Name: "N23", Action: "cut", Target: "control", Effect: "felt"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		s.edit(1)
		s.now += 4 * second
		s.fault(1, hist.FaultEnds, f)
		s.now += 4 * second
		for range 7 {
			s.let(hist.AskArgs{})
		}
	}, "6 requests were admitted"},
	{"an absence of Redis gives more than a burst", C1, nil, func(s *story) {
		s.behind(tenASecond)
		f := hist.Fault{Name: "N20", Action: "kill-9", Target: "redis", Effect: "gone"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		for range 11 {
			s.let(hist.AskArgs{})
		}
		s.fault(1, hist.FaultEnds, f)
	}, "11 requests were admitted"},
	{"a gateway alone takes more than its part", C1, nil, func(s *story) {
		s.behind(tenASecond)
		f := hist.Fault{Name: "N20", Action: "pause", Target: "redis", Effect: "stopped"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		s.now += 2 * second
		for range 5 {
			s.request(1, hist.AskArgs{}).ok(&hist.AskAnswer{Mode: "local"})
		}
		s.fault(1, hist.FaultEnds, f)
	}, "3 requests were admitted"},
	{"a gateway alone lets in a batch that it has not saved up for", C1, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{MessageRate: 2, MessageBurst: 10}})
		f := hist.Fault{Name: "N20", Action: "pause", Target: "redis", Effect: "stopped"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		batch := hist.AskArgs{Does: hist.DoesPush, Messages: 10}
		s.refuse(429, batch, hist.AskAnswer{Mode: "local", Limit: "msgs"})
		s.now += 2 * second
		s.request(1, batch).ok(&hist.AskAnswer{Mode: "local"})
		s.fault(1, hist.FaultEnds, f)
	}, "10 messages were admitted"},
	{"a tenth of the rate is not to be had", C2, nil, func(s *story) {
		s.behind(tenASecond)
		s.flood(10*second, 112*ms)
	}, "were admitted in"},
	{"a lone client waits in vain", C3, nil, func(s *story) {
		s.behind(tenASecond)
		s.refuse(429, hist.AskArgs{Part: "lone"}, hist.AskAnswer{Limit: "req", RetryAfter: 1, RetryMs: 90})
		s.now += second
		s.refuse(429, hist.AskArgs{Part: "lone"}, hist.AskAnswer{Limit: "req", RetryAfter: 1, RetryMs: 90})
	}, "waited the 1 s"},
	{"a lone client is told to wait for nothing", C3, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{RequestRate: 0.5, RequestBurst: 1}})
		s.refuse(429, hist.AskArgs{Part: "lone"}, hist.AskAnswer{Limit: "req", RetryAfter: 2, RetryMs: 1900})
		s.now += second
		s.let(hist.AskArgs{Part: "lone"})
	}, "early, and was let in"},
	{"a refusal names no time", C3, nil, func(s *story) {
		s.behind(tenASecond)
		s.refuse(429, hist.AskArgs{Part: "lone"}, hist.AskAnswer{Limit: "req"})
		s.let(hist.AskArgs{Part: "lone"})
	}, "says Retry-After 0"},
	{"a batch that never fits is told to wait", C3, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{MessageRate: 10, MessageBurst: 5}})
		s.refuse(429, hist.AskArgs{Does: hist.DoesPush, Messages: 6}, hist.AskAnswer{Limit: "msgs"})
	}, "ever fit"},
	{"a poll too many waits", C4, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Parked: 1}})
		a, b := s.request(1, wait4), s.request(2, wait4)
		s.now += 4 * second
		a.ok(&hist.AskAnswer{})
		b.ok(&hist.AskAnswer{})
	}, "2 polls wait, and 1 may"},
	{"a slot is lost", C4, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Parked: 1}})
		s.request(1, wait4).hang()
		s.now += 2 * second
		s.refuse(429, wait4, hist.AskAnswer{Limit: "parked"})
	}, "at most 0 of 1"},
	{"a gauge counts a client that is gone", C4, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Parked: 5}})
		s.request(1, wait4).hang()
		s.now += 2 * second
		s.noted(hist.Parked, &hist.ParkedNote{Gateway: "gw1", Polls: 1, AskedMs: 1})
	}, "counts 1 waiting polls"},
	{"a broker waits for nobody", C4, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Parked: 5}})
		s.request(1, wait4).hang()
		s.now += 2 * second
		s.noted(hist.Parked, &hist.ParkedNote{Gateway: "br1", Polls: 1, AskedMs: 1})
	}, "br1 has 1 waiting polls"},
	{"a slot is lost while a broker stands still", C4, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Parked: 1}})
		f := hist.Fault{Name: "N3", Action: "pause", Target: "br1", Effect: "stopped"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		s.request(1, wait4).hang()
		s.now += 2 * second
		s.refuse(429, wait4, hist.AskAnswer{Limit: "parked"})
		s.fault(1, hist.FaultEnds, f)
	}, "at most 0 of 1"},
	{"goroutines stay behind", F1, nil, func(s *story) {
		s.noted(hist.Rest, &hist.RestNote{Process: "gw1", PID: 7, Goroutines: 50, Files: 90})
		s.noted(hist.Rest, &hist.RestNote{Process: "gw1", PID: 7, After: true, Goroutines: 75, Files: 80})
	}, "75 goroutines and 80 open files"},
	{"descriptors stay behind", F1, nil, func(s *story) {
		s.noted(hist.Rest, &hist.RestNote{Process: "gw1", PID: 7, Goroutines: 50, Files: 1000})
		s.noted(hist.Rest, &hist.RestNote{Process: "gw1", PID: 7, After: true, Goroutines: 50, Files: 1021})
	}, "1021 open files"},
	{"a queue too many", C5, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Queues: 2}})
		s.noted(hist.Truth, &hist.TruthNote{Cluster: "c", Queues: 3})
	}, "has 3 queues"},
	{"a partition too many", C5, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Partitions: 2}})
		s.noted(hist.Truth, &hist.TruthNote{Cluster: "c", Partitions: 3})
	}, "a queue of 3 partitions"},
	{"a place is lost", C5, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Queues: 2}})
		s.noted(hist.Truth, &hist.TruthNote{Cluster: "c", Queues: 1, Full: true})
	}, "cannot get to its 2"},
	{"a deleted queue counts", C5, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Queues: 2}})
		s.noted(hist.Truth, &hist.TruthNote{Cluster: "c", Queues: 1})
		s.now += 3 * second
		s.refuse(403, hist.AskArgs{Does: hist.DoesPush, Messages: 1}, hist.AskAnswer{Code: "quota_exceeded", Limit: "queues"})
	}, "of which there were 1 of 2"},
	{"an allowance is passed by more than a request of each gateway", C6, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Monthly: 10}})
		for range 8 {
			s.let(hist.AskArgs{Does: hist.DoesPush, Messages: 2})
		}
	}, "16 messages were taken of an allowance of 10"},
	{"an allowance is not to be had", C6, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Monthly: 100}})
		s.let(hist.AskArgs{Does: hist.DoesPush, Messages: 80})
		s.refuse(403, hist.AskArgs{Does: hist.DoesPush, Messages: 4}, hist.AskAnswer{Code: "quota_exceeded", Limit: "month"})
	}, "at most 84 can have been taken"},
	{"a read is refused for the month", C6, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{Monthly: 10}})
		s.let(hist.AskArgs{Does: hist.DoesPush, Messages: 10})
		s.refuse(403, hist.AskArgs{Does: hist.DoesPop}, hist.AskAnswer{Code: "quota_exceeded", Limit: "month"})
	}, "pop was refused for the month"},
	{"bytes pass their cap by more than a request of each gateway", C6, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{RetainedBytes: 1000}})
		s.let(hist.AskArgs{Does: hist.DoesPush, Bytes: 100})
		s.noted(hist.Truth, &hist.TruthNote{Cluster: "c", Bytes: 1201})
	}, "holds 1201 bytes"},
	{"an ack is refused for retained bytes", C6, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{RetainedBytes: 1000}})
		s.refuse(403, hist.AskArgs{Does: hist.DoesAck}, hist.AskAnswer{Limit: "storage"})
	}, "ack was refused"},
	{"a block is not released", C6, nil, func(s *story) {
		s.behind(hist.Cluster{Limits: hist.Limits{RetainedBytes: 1000}})
		s.noted(hist.Truth, &hist.TruthNote{Cluster: "c", Bytes: 500})
		s.now += 6 * second
		s.refuse(403, hist.AskArgs{Does: hist.DoesPush, Bytes: 10}, hist.AskAnswer{Limit: "storage"})
	}, "500 of 1000"},
	{"a later refusal is told", C7, nil, func(s *story) {
		s.behind(hist.Cluster{})
		s.refuse(413, hist.AskArgs{Part: "rate before payload", Want: "429 rate_limited req"}, hist.AskAnswer{Code: "payload_too_large", Limit: "payload"})
	}, `"413 payload_too_large payload", want "429 rate_limited req"`},
	{"an answer shows a stranger's text", I1, nil, func(s *story) {
		s.behind(hist.Cluster{Canary: "mine"})
		s.request(1, hist.AskArgs{}).ok(&hist.AskAnswer{Leak: "theirs"})
	}, "theirs"},
	{"a log shows a tenant's text", I1, nil, func(s *story) {
		s.noted(hist.Leak, &hist.LeakNote{Where: "gw1.log", Text: "secret"})
	}, "gw1.log shows"},
	{"a neighbour is felt", I2, nil, func(s *story) {
		s.behind(hist.Cluster{})
		s.times("solo", 5*ms)
		s.times("beside", 70*ms)
	}, "beside a noisy neighbour"},
	{"a victim is refused", I2, nil, func(s *story) {
		s.behind(hist.Cluster{})
		s.times("solo", 5*ms)
		s.times("beside", 5*ms)
		s.refuse(429, hist.AskArgs{Part: "beside"}, hist.AskAnswer{Code: "rate_limited"})
	}, "well within its plan"},
	{"a key outlives its revocation", Y1, nil, func(s *story) {
		s.behind(hist.Cluster{})
		s.let(hist.AskArgs{Key: "k"})
		s.noted(hist.Cut, &hist.CutNote{Cluster: "c", Key: "k", How: "key"})
		s.now += 1100 * ms
		s.let(hist.AskArgs{Key: "k"})
	}, "was revoked at"},
	{"a key comes back to life", Y1, nil, func(s *story) {
		s.behind(hist.Cluster{})
		s.let(hist.AskArgs{Key: "k"})
		s.noted(hist.Cut, &hist.CutNote{Cluster: "c", Key: "k", How: "key"})
		f := hist.Fault{Name: "N23", Action: "cut", Target: "control", Effect: "felt"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		s.fault(1, hist.FaultEnds, f)
		s.now += 4 * second
		s.refuse(401, hist.AskArgs{Key: "k"}, hist.AskAnswer{})
		s.let(hist.AskArgs{Key: "k"})
	}, "was revoked at"},
	{"a key outlives its revocation for longer than any machine is busy", Y1, nil, func(s *story) {
		s.behind(hist.Cluster{})
		s.let(hist.AskArgs{Key: "k"})
		s.noted(hist.Cut, &hist.CutNote{Cluster: "c", Key: "k", How: "key"})
		s.now += 7 * second
		s.let(hist.AskArgs{Key: "k"})
	}, "was revoked at"},
	{"a lost notification is not made up for", Y1, nil, func(s *story) {
		s.behind(hist.Cluster{})
		f := hist.Fault{Name: "N23", Action: "mute", Target: "control", Effect: "felt"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		s.let(hist.AskArgs{Key: "k"})
		s.noted(hist.Cut, &hist.CutNote{Cluster: "c", Key: "k", How: "key"})
		s.now += 1500 * ms
		s.let(hist.AskArgs{Key: "k"}) // it is being found
		s.now += second
		s.let(hist.AskArgs{Key: "k"})
		s.fault(1, hist.FaultEnds, f)
	}, "was revoked at"},
	{"a gateway that starts without its control database serves nobody", Y2, nil, func(s *story) {
		s.behind(hist.Cluster{})
		f := hist.Fault{Name: "N23", Action: "reboot", Target: "gw1", Effect: "gone"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		s.now += 2 * second
		s.refuse(503, hist.AskArgs{Part: "steady"}, hist.AskAnswer{Code: "control_unavailable"}) // it starts
		s.now += 2 * second
		s.refuse(503, hist.AskArgs{Part: "steady"}, hist.AskAnswer{Code: "control_unavailable"})
		s.fault(1, hist.FaultEnds, f)
	}, "gw1 answered 503"},
	{"a neighbour waits, and the victim more", I2, nil, func(s *story) {
		s.behind(hist.Cluster{Workload: "G6-turns"})
		s.times("solo", 5*ms)
		s.times("beside", 70*ms)
		s.noted(hist.Offer, &hist.OfferNote{Cluster: "c", Requests: 100, Seconds: 6, MedianMs: 180})
	}, "beside a noisy neighbour"},
	{"a victim waits as long as its neighbour", I2, nil, func(s *story) {
		s.behind(hist.Cluster{Workload: "G6-turns"})
		s.times("solo", 5*ms)
		s.times("beside", 170*ms)
		s.noted(hist.Offer, &hist.OfferNote{Cluster: "c", Requests: 100, Seconds: 6, MedianMs: 180})
	}, "beside a noisy neighbour"},
	{"a broker that failed is waited for until it is back", P2, pooled, func(s *story) {
		f := brokerDown(s)
		o := s.begin(hist.Push, messages("q", 1))
		s.now += 2 * second
		s.fault(1, hist.FaultRepairs, f)
		s.fault(1, hist.FaultEnds, f)
		o.ok(&hist.PushAnswer{result("queued", s.store(message("q", 1)))})
		s.end()
	}, "a push took 2"},
	{"a pool is left with less than half", P2, nil, func(s *story) {
		f := hist.Fault{Name: "N4", Action: "lost", Target: "cell", Effect: "felt"}
		s.fault(1, hist.FaultBegins, f)
		s.fault(1, hist.FaultObserved, f)
		for range 2 {
			s.noted(hist.Pooled, &hist.PoolNote{Gateway: "gw1", Brokers: 3, Live: 3, Serving: 1})
		}
		s.fault(1, hist.FaultEnds, f)
	}, "sends to 1 of 3 brokers"},
	{"a pop fails for its broker", P1, pooled, func(s *story) {
		s.begin(hist.Pop, &hist.PopArgs{Queue: "q", Group: "g", Wait: true}).back(hist.Fail, 503, nil)
	}, "ended in 503"},
	{"a broker that failed is asked", P2, pooled, func(s *story) {
		f := brokerDown(s)
		s.begin(hist.Push, messages("q", 1)).fail()
		s.fault(1, hist.FaultEnds, f)
		s.end()
	}, "after br1 had failed"},
	{"a broker that failed is waited for", P2, pooled, func(s *story) {
		f := brokerDown(s)
		o := s.begin(hist.Push, messages("q", 1))
		s.now += 2 * second
		o.ok(&hist.PushAnswer{result("queued", s.store(message("q", 1)))})
		s.fault(1, hist.FaultEnds, f)
		s.end()
	}, "a push took 2"},
	{"what is under way at a broker that failed waits for it", P2, pooled, func(s *story) {
		o := s.begin(hist.Push, messages("q", 1))
		f := brokerDown(s)
		s.now += 2 * second
		s.fault(1, hist.FaultEnds, f)
		o.info()
		s.end()
	}, "a push was under way until 5"},
}

// What looks bad and is as it should be.
func TestGatewaysThatKeepTheirPromises(t *testing.T) {
	t.Parallel()
	s := tell(t)
	c := tenASecond
	c.Limits.Parked, c.Limits.RetainedBytes, c.Canary = 1, 1000, "mine"
	s.behind(c)
	s.flood(10*second, 100*ms)
	s.refuse(403, hist.AskArgs{Does: hist.DoesPush, Bytes: 10, Want: "403 storage_quota_exceeded storage"}, hist.AskAnswer{Code: "storage_quota_exceeded", Limit: "storage"})
	s.refuse(429, hist.AskArgs{Part: "lone"}, hist.AskAnswer{Limit: "req", RetryAfter: 1, RetryMs: 90})
	s.now += second
	s.let(hist.AskArgs{Part: "lone"})
	// A gateway decides alone for a moment, and lets in a part of the burst.
	s.now += 3 * second
	for range 7 {
		s.request(1, hist.AskArgs{}).ok(&hist.AskAnswer{Mode: "local"})
	}
	s.now += 3 * second
	// A poll is refused while the slot of one that has just gone is on its way back.
	s.request(1, wait4).hang()
	s.refuse(429, wait4, hist.AskAnswer{Limit: "parked"})
	s.now += 2 * second
	s.noted(hist.Parked, &hist.ParkedNote{Gateway: "gw1", AskedMs: 1})
	s.noted(hist.Truth, &hist.TruthNote{Cluster: "c", Bytes: 1000})
	// What a gateway took that was alone is seen when brokers are measured.
	s.request(1, hist.AskArgs{Does: hist.DoesPush, Bytes: 10}).ok(&hist.AskAnswer{Mode: "local"})
	s.request(1, hist.AskArgs{Does: hist.DoesPush, Bytes: 10}).ok(&hist.AskAnswer{Mode: "local"})
	s.noted(hist.Truth, &hist.TruthNote{Cluster: "c", Bytes: 1040})
	s.refuse(403, hist.AskArgs{Does: hist.DoesPush, Bytes: 10, Want: "403 storage_quota_exceeded storage"}, hist.AskAnswer{Code: "storage_quota_exceeded", Limit: "storage"})
	s.let(hist.AskArgs{Key: "k"})
	s.noted(hist.Cut, &hist.CutNote{Cluster: "c", Key: "k", How: "key"})
	s.let(hist.AskArgs{Key: "k"}) // the news is on its way
	s.now += 2 * second
	s.refuse(401, hist.AskArgs{Key: "k"}, hist.AskAnswer{Code: "unauthorized"})
	s.times("solo", 100*ms)
	s.times("beside", 140*ms)
	report := s.judge()
	if rules, texts := red(report); len(rules) > 0 {
		t.Fatalf("red: %v\n%v", rules, texts)
	}
	for _, r := range report.Rules {
		switch r.Rule {
		case "C1", "C2", "C3", "C4", "C6", "C7", "I1", "I2", "Y1":
			if r.Checked == 0 || r.Verdict != Pass {
				t.Errorf("%s is %s after %d facts: %s", r.Rule, r.Verdict, r.Checked, r.Reason)
			}
		}
	}
}

// A broker that stands still for a moment may be waited for: nobody has found out.
func TestABrokerThatStandsStillForAMoment(t *testing.T) {
	t.Parallel()
	s := tell(t, pooled...)
	o := s.begin(hist.Push, messages("q", 1))
	f := brokerDown(s)
	s.fault(1, hist.FaultEnds, f)
	s.now += 2 * second
	o.info()
	s.end()
	if rules, texts := red(s.judge()); len(rules) > 0 {
		t.Errorf("red: %v\n%v", rules, texts)
	}
}

// While Redis is away a gateway may save up for a batch that is more than its part of the burst.
func TestABatchThatWasSavedUpForIsNoFinding(t *testing.T) {
	t.Parallel()
	s := tell(t)
	s.behind(hist.Cluster{Limits: hist.Limits{MessageRate: 2, MessageBurst: 10}})
	f := hist.Fault{Name: "N20", Action: "pause", Target: "redis", Effect: "stopped"}
	s.fault(1, hist.FaultBegins, f)
	s.fault(1, hist.FaultObserved, f)
	batch := hist.AskArgs{Does: hist.DoesPush, Messages: 10}
	s.refuse(429, batch, hist.AskAnswer{Mode: "local", Limit: "msgs"})
	s.now += 6 * second
	s.request(1, batch).ok(&hist.AskAnswer{Mode: "local"})
	s.fault(1, hist.FaultEnds, f)
	if rules, texts := red(s.judge()); len(rules) > 0 {
		t.Fatalf("red: %v\n%v", rules, texts)
	}
}

// A tariff is as generous as the better of two plans while an edit spreads, and no longer.
func TestATariffWhileAnEditSpreads(t *testing.T) {
	t.Parallel()
	b := &buckets[0]
	c := &hist.Cluster{Limits: hist.Limits{RequestRate: 10, RequestBurst: 5}}
	for name, x := range map[string]struct {
		rate, want float64 // of the edit after 10 s; what there is from 0 to 20 s
	}{
		"up":   {20, 100 + 200},
		"down": {5, 120 + 40},
	} {
		tar := b.tariff(c, []edit{{10 * second, 10 * second, hist.Limits{RequestRate: x.rate, RequestBurst: 5}}}, (&judge{}).heard)
		if got := tar.refill(20 * second); got != x.want {
			t.Errorf("%s: %v in 20 s, want %v", name, got, x.want)
		}
		if _, ok := tar.steady(11*second, 11*second+int64(time.Millisecond)); ok {
			t.Errorf("%s: one plan is in force while the edit spreads", name)
		}
		if _, ok := tar.steady(13*second, 14*second); !ok {
			t.Errorf("%s: two plans are in force for ever", name)
		}
	}
}

// A plan may be in force for as long as gateways cannot hear that it was edited, and however many edits there are meanwhile.
func TestAnEditThatNobodyCanHearOf(t *testing.T) {
	t.Parallel()
	s := tell(t)
	s.behind(tenASecond)
	f := hist.Fault{Name: "N23", Action: "cut", Target: "control", Effect: "felt"}
	s.fault(1, hist.FaultBegins, f)
	s.fault(1, hist.FaultObserved, f)
	s.edit(1)
	s.now += 2 * second
	s.edit(2)
	for range 40 {
		s.let(hist.AskArgs{})
		s.now += 98 * ms
	}
	s.fault(1, hist.FaultEnds, f)
	for range 20 {
		s.let(hist.AskArgs{})
		s.now += 98 * ms
	}
	if rules, texts := red(s.judge()); len(rules) > 0 {
		t.Fatalf("red: %v\n%v", rules, texts)
	}
}

// A busy machine may hear of an edit later, and goes by the old plan until then.
func TestAnEditThatIsHeardOfLate(t *testing.T) {
	t.Parallel()
	for others, want := range map[float64]Verdict{0: Fail, 0.5: Pass} {
		s := tell(t)
		s.behind(tenASecond)
		s.edit(1)
		for range 50 {
			s.let(hist.AskArgs{})
			s.now += 98 * ms
		}
		s.noted(hist.Machine, &hist.MachineNote{ForMs: s.now / ms, Others: others, Wait: 0.9})
		for _, r := range s.judge().Rules {
			if r.Rule == C1.String() && r.Verdict != want {
				t.Errorf("beside others that have %v: %s, want %s: %v", others, r.Verdict, want, r.First)
			}
		}
	}
}

// What Redis has lost, or gateways could not hear of, is no reason to refuse.
func TestAReasonToRefuseThatIsGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault  hist.Fault
		checks int64
	}{
		"Redis has lost it":     {hist.Fault{Name: "N20", Action: "kill-9", Target: "redis"}, 0},
		"Redis was slow":        {hist.Fault{Name: "N20", Action: "slow", Target: "redis"}, 1},
		"nobody could hear":     {hist.Fault{Name: "N23", Action: "cut", Target: "control"}, 1},
		"a gateway was stopped": {hist.Fault{Name: "N2", Action: "pause", Target: "gw1"}, 2},
	} {
		s := tell(t)
		s.behind(hist.Cluster{})
		s.fault(1, hist.FaultBegins, c.fault)
		s.fault(1, hist.FaultObserved, c.fault)
		s.fault(1, hist.FaultEnds, c.fault)
		for range 2 {
			s.now += 6 * second
			s.refuse(429, hist.AskArgs{Want: "429 rate_limited req"}, hist.AskAnswer{Code: "rate_limited", Limit: "req"})
		}
		for _, r := range s.judge().Rules {
			if r.Rule == C7.String() && r.Checked != c.checks {
				t.Errorf("%s: %d refusals were judged, want %d", name, r.Checked, c.checks)
			}
		}
	}
}

// A bucket runs over while nobody has an answer, and what is lost so is nobody's fault. A rate that is not to be had is one on
// a machine that stands still, too.
func TestAMachineThatStandsStillUsesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		every int64
		want  Verdict
	}{"what there is": {100 * ms, Pass}, "less": {125 * ms, Fail}} {
		s := tell(t)
		s.behind(tenASecond)
		for range 9 {
			s.flood(700*ms, c.every)
			s.now += 300 * ms // in which three requests get lost
		}
		for _, r := range s.judge().Rules {
			if r.Rule == C2.String() && (r.Verdict != c.want || r.Checked == 0) {
				t.Errorf("%s: %s after %d facts, want %s: %v", name, r.Verdict, r.Checked, c.want, r.First)
			}
		}
	}
}

// Gateways that decide alone now and then are judged; those that do so most of the time leave C1 open.
func TestGatewaysThatDecideAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		alone int64
		want  Verdict
	}{"now and then": {second, Pass}, "mostly": {6 * second, Unknown}} {
		s := tell(t)
		s.behind(hist.Cluster{Limits: hist.Limits{RequestRate: 10, RequestBurst: 5}})
		for end := s.now + 10*second; s.now < end; s.now += 498 * ms {
			mode := "enforce"
			if end-s.now < c.alone {
				mode = "local"
			}
			s.request(1, hist.AskArgs{}).ok(&hist.AskAnswer{Mode: mode})
		}
		for _, r := range s.judge().Rules {
			if r.Rule == C1.String() && r.Verdict != c.want {
				t.Errorf("%s: %s, want %s: %s", name, r.Verdict, c.want, r.Reason)
			}
		}
	}
}

// The histories above that a busy machine explains. All others turn their rule red on any.
var explained = []string{
	"a poll too many waits", "a slot is lost", "a gauge counts a client that is gone", "a broker waits for nobody",
	"a slot is lost while a broker stands still",
	"goroutines stay behind", "descriptors stay behind",
	"a place is lost", "a deleted queue counts", "a block is not released",
	"a neighbour is felt", "a neighbour waits, and the victim more",
	"a key outlives its revocation", "a key comes back to life", "a lost notification is not made up for",
	"a gateway that starts without its control database serves nobody",
	"a broker that failed is waited for until it is back", "a broker that failed is asked", "a broker that failed is waited for",
	"what is under way at a broker that failed waits for it",
}

func TestWhatABusyMachineExplainsOfGateways(t *testing.T) {
	t.Parallel()
	found := 0
	for _, b := range badGates {
		want := Fail
		if slices.Contains(explained, b.name) {
			want = NotJudged
			found++
		}
		s := tell(t, b.queues...)
		b.tell(s)
		s.noted(hist.Machine, &hist.MachineNote{ForMs: s.now / ms, LateMs: 20, Others: 0.6, Wait: 0.9})
		for _, r := range s.judge().Rules {
			if r.Rule != b.rule.String() {
				continue
			}
			if r.Verdict != want || want == NotJudged && (r.Unjudged == 0 || !strings.Contains(r.Reason, b.says)) {
				t.Errorf("%s, beside others: %s is %s (%s), want %s", b.name, r.Rule, r.Verdict, r.Reason, want)
			}
		}
	}
	if found != len(explained) {
		t.Errorf("%d of %d histories are told", found, len(explained))
	}
}
