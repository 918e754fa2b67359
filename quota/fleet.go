package quota

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/queengate/queengate/quota/meter"
)

// FleetOptions say how gateways share their limits.
type FleetOptions struct {
	Redis *redis.Options // where; the gate makes its own client and closes it at the end of Run

	// Leases lets a gateway take tokens ahead for clusters that are busy on it, and decide alone while they last.
	// Without it every decision is made in Redis.
	Leases bool

	// Budget is how long a decision may wait for Redis; zero is 25 ms. The first that waits in vain begins an absence:
	// until Redis answers again nobody waits, and this gateway decides with its part of every plan.
	Budget time.Duration

	// Size is the least number of gateways to count on while Redis is away; zero is one.
	Size int

	// Known is how many gateways were heard of last before this one started; zero is none. They are counted on until
	// Redis says otherwise, so that a gateway that starts while it is away does not take the whole plan for itself.
	Known int

	// Remember, when there is one, is told how many gateways are heard of, once whenever that changes; what it fails with
	// is logged. Calls are serial, and hold up heartbeats only.
	Remember func(gateways int) error

	// Absences, when there is one, keeps the share of a gateway that is cut off from Redis for as long as it says so there.
	// Without it the others take a gateway for dead after eight seconds.
	Absences Absences

	Prefix string // of all keys; empty is "qg"
}

const defaultBudget = 25 * time.Millisecond

// WithFleet makes the gate one of a fleet.
func WithFleet(o FleetOptions) Option { return func(g *Gate) { g.fleet = newFleet(g, o) } }

var (
	//go:embed decide.lua
	decideText   string
	decideScript = newScript(decideText)

	//go:embed names.lua
	namesText   string
	namesScript = newScript(namesText)

	//go:embed slots.lua
	slotsText   string
	slotsScript = newScript(slotsText)

	//go:embed beat.lua
	beatText   string
	beatScript = newScript(beatText)

	//go:embed measured.lua
	measuredText   string
	measuredScript = newScript(measuredText)

	//go:embed month.lua
	monthText   string
	monthScript = newScript(monthText)

	//go:embed duty.lua
	dutyText   string
	dutyScript = newScript(dutyText)

	scripts = []*script{decideScript, namesScript, slotsScript, beatScript, measuredScript, monthScript, dutyScript}
)

// layout is the version of the keys and values in Redis. Gateways of two versions do not share.
const layout = "1"

// fleet is the part of a gate that decides with others through Redis. While Redis answers, an account mirrors what it
// said last, and every rule is asked once more over that state, so that refusals, waits and headers are made in one
// place. While it is away, the account is this gateway's part of the plan and decides alone.
type fleet struct {
	gate   *Gate
	log    *slog.Logger
	pipe   pipe
	leases bool
	name   string // the gate's
	prefix string

	size  int64        // of the fleet, at least
	seen  atomic.Int64 // gateways, as believed
	heard atomic.Int64 // gateways, as heard last
	deaf  atomic.Int64 // of those, the ones whose heartbeat is missing
	dead  atomic.Int64 // gateways whose heartbeat was missing for too long, within half a minute
	beats beats

	// Only who beats and tends uses these.
	state  int64        // which one Redis has, as heard last; 0: not yet
	retold []busyLedger // of which Redis is still to be told anew

	remember func(gateways int) error // nil: nobody is told
	told     int64                    // last

	absences Absences // nil: nobody hears of those that are alone
	alone    atomic.Pointer[[]string]
	unheard  bool // the last call failed; only watchAbsences uses it

	slotNumber atomic.Int64
	epochs     atomic.Int64 // of ledgers with Redis: a new one after each absence

	mu   sync.Mutex // guards busy
	busy map[uuid.UUID]*ledger

	stats fleetStats

	listingTime func() time.Time // the gate's clock, for listings

	// clock asks Redis for its time. Tests have a clock of their own.
	clock func(context.Context) (time.Time, error)

	// ask says what the scripts take for the time: nothing, and they ask Redis for its. Tests have a clock of their own.
	ask func(now time.Time) any
}

func newFleet(g *Gate, o FleetOptions) *fleet {
	settings := *o.Redis
	settings.MaxRetries = -1 // a decision that was sent may have been made
	settings.ContextTimeoutEnabled = true
	settings.DialTimeout = time.Second
	settings.DialerRetries = 1
	settings.PoolSize = max(settings.PoolSize, laneCount+4)
	settings.MaxActiveConns = 0
	f := &fleet{
		gate: g, log: g.log, leases: o.Leases, name: g.name, prefix: o.Prefix, size: max(1, int64(o.Size)),
		busy: map[uuid.UUID]*ledger{}, ask: func(time.Time) any { return "" },
		listingTime: func() time.Time { return g.clock() },
	}
	if f.prefix == "" {
		f.prefix = "qg"
	}
	f.prefix += ":" + layout + ":"
	f.pipe = pipe{client: redis.NewClient(&settings), budget: o.Budget, lost: f.lost}
	if o.Budget <= 0 {
		f.pipe.budget = defaultBudget
	}
	f.clock = func(ctx context.Context) (time.Time, error) { return f.pipe.client.Time(ctx).Result() }
	f.stats.init()
	f.pipe.observe = f.stats.observe
	f.remember, f.told = o.Remember, int64(o.Known)
	f.absences = o.Absences
	f.seen.Store(max(1, f.told))
	f.heard.Store(1)
	return f
}

// newName returns a number that no other gateway has, small enough to be exact as a double.
func newName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return strconv.FormatUint(binary.BigEndian.Uint64(b[:])>>13|1<<50, 10)
}

// lost says once that Redis is away.
func (f *fleet) lost(err error) {
	f.stats.losses.Inc()
	f.log.Warn("Redis is away: this gateway decides with its part of every plan", "gateways", f.gateways(), "err", err)
}

// gateways is among how many a plan is shared out.
func (f *fleet) gateways() int64 { return max(f.size, f.seen.Load()) }

// asking reports whether Redis is asked for decisions.
func (f *fleet) asking() bool { return !f.pipe.away.Load() }

// keys are the names of what Redis keeps for a cluster. The cluster's id is the hash tag: a cluster lives on one node.
type keys struct {
	requests, messages, delivery string
	slots, ours                  string
	names, queues, partition     string
	storage, months              string
	key                          string // of its buckets, with its id to come
	lane                         byte
}

func (f *fleet) keysOf(id uuid.UUID) keys {
	stem := f.prefix + "{" + id.String() + "}:"
	return keys{
		requests: stem + "b:req", messages: stem + "b:msgs", delivery: stem + "b:dlv", key: stem + "b:",
		slots: stem + "p", ours: stem + "p:" + f.name, names: stem + "n", queues: stem + "q", partition: stem + "q:",
		storage: stem + "s", months: stem + "m:", lane: id[14],
	}
}

// erasePage is how many keys one call looks at: a fraction of a millisecond of Redis.
const erasePage = 1000

// erase removes every key of a cluster. They are found by their names, for others of the product may keep some too.
func (f *fleet) erase(ctx context.Context, id uuid.UUID) error {
	pattern := f.prefix + "{" + id.String() + "}:*"
	for cursor := uint64(0); ; {
		keys, next, err := f.pipe.client.Scan(ctx, cursor, pattern, erasePage).Result()
		if err == nil && len(keys) > 0 {
			err = f.pipe.client.Unlink(ctx, keys...).Err()
		}
		if err != nil {
			return fmt.Errorf("erase %s in Redis: %w", id, err)
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// partaking is what a ledger knows of the fleet. Its ledger's mutex guards it.
type partaking struct {
	keys     keys
	mirrors  bool // the account mirrors Redis; otherwise it is a part of the plan
	seen     int64
	fresh    bool // the mirror is from Redis, at seen
	requests side
	messages side
	delivery side // which is never leased: what pops deliver is known only afterwards
	meter    tempo

	epoch   int64 // of what Redis knows of purses: a call of an earlier one is void
	storage purse
	month   purse
	monthOf meter.Month // whose purse that is
	toldAt  int64       // when purses were told last
	tended  bool        // the ledger stands among the busy ones

	number     int64 // of the last call about leases
	leasing    bool  // such a call is in flight: no other may be, since it states what is left
	flushing   bool  // a call is queued that says what is to be said
	lastUsed   int64 // of a lease
	generation int64 // of the names in Redis, as heard last
	slotsTold  int64 // when slots were last beaten
	slotsOff   int   // beats in a row that found another number of slots in Redis
}

// side is what is to be told of one bucket with the next call.
type side struct {
	lease
	give, debit, owe int64
	hint             int64 // the most that the bucket may hold, after an absence
	hinted           bool
}

// due reports whether something must be told without a request to tell it by.
func (s *side) due() bool { return s.give+s.debit > 0 }

// recall makes the bucket's level the most that Redis may have.
func (s *side) recall(b *bucket) { s.hint, s.hinted = b.level, b.set }

// remembering is how long the mirror is believed for a refusal: tokens that come back elsewhere are not seen sooner.
const remembering = int64(time.Second)

// join brings a locked ledger to the state of the fleet: a mirror while Redis answers, a part of the plan while not.
func (f *fleet) join(l *ledger, id uuid.UUID, t int64) *partaking {
	s := l.partaking
	if s == nil {
		s = &partaking{keys: f.keysOf(id), mirrors: true, generation: -1, epoch: f.epochs.Add(1)}
		l.partaking = s
		l.acc.storage.mirror(t)
	}
	if asking := f.asking(); asking != s.mirrors {
		acc := &l.acc
		s.slotsTold = 0
		s.mirrors, s.fresh = asking, false
		if !asking {
			f.part(s, acc, t)
		} else {
			acc.split(1, t)
			acc.storage.mirror(t)
			s.epoch = f.epochs.Add(1)
			s.requests.recall(&acc.requests)
			s.messages.recall(&acc.messages)
			s.delivery.recall(&acc.delivery)
			for _, k := range acc.keys {
				k.requestsSide.recall(&k.requests)
				k.messagesSide.recall(&k.messages)
			}
		}
	}
	s.requests.expire(t)
	s.messages.expire(t)
	s.storage.expire(t)
	s.month.expire(t)
	return s
}

// part ends the mirror: the gateway goes on with its part of the last known level and with what it has leased.
func (f *fleet) part(s *partaking, acc *account, t int64) {
	acc.split(f.gateways(), t)
	// What is leased is this gateway's already.
	acc.requests.give(s.requests.left)
	acc.messages.give(s.messages.left)
	s.requests, s.messages, s.delivery = newSide(&s.requests), newSide(&s.messages), side{}
	for _, k := range acc.keys {
		k.requestsSide, k.messagesSide, k.fresh = side{}, side{}, false
	}
	acc.storage.part(f.gate.epoch.Add(time.Duration(t)))
	acc.month.anchor = acc.month.own + acc.month.reserved
	s.storage, s.month = purse{}, purse{}
	s.flushing, s.leasing, s.slotsOff = false, false, 0
}

func newSide(old *side) side {
	n := side{}
	n.demand = old.demand
	return n
}

// busyWith keeps the ledger among those that need tending: leases to return, slots to beat.
func (f *fleet) busyWith(id uuid.UUID, l *ledger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy[id] = l
	l.partaking.tended = true
}

// run beats and tends until ctx ends, and then takes leave.
func (f *fleet) run(ctx context.Context) error {
	f.beats.seenAt = time.Now() // what is known from before is believed for a while
	f.beat(f.beats.seenAt)
	if f.absences != nil {
		var watch sync.WaitGroup
		watch.Go(func() { f.watchAbsences(ctx) })
		defer watch.Wait()
	}
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return f.leave()
		case now := <-tick.C:
			f.tend(now)
			if f.beats.due(now, f.asking()) {
				f.beat(now)
			}
		}
	}
}

// leave returns what this gateway holds: others need not wait for it to be declared dead.
func (f *fleet) leave() error {
	now := time.Now()
	f.returnLeases(now, true)
	f.pipe.drains.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), f.pipe.budget)
	defer cancel()
	var err error
	if f.asking() {
		err = f.pipe.client.ZRem(ctx, f.prefix+"{gateways}", f.name).Err()
	}
	return errors.Join(err, f.pipe.close())
}

// Standing says in a few words who decides the limits, for operators.
func (g *Gate) Standing() string {
	f := g.fleet
	switch {
	case f == nil:
		return "limits are kept in memory"
	case !f.asking():
		return fmt.Sprintf("Redis is away; this gateway decides with its part of every plan, one of %d", f.gateways())
	case f.leases:
		return fmt.Sprintf("answers; %d gateways lease their limits", f.seen.Load())
	}
	return fmt.Sprintf("answers; it decides for %d gateways", f.seen.Load())
}

// alone marks a report that was made without the fleet.
func (l *ledger) alone(r Report) Report {
	r.Alone = r.Name != "" && l.partaking != nil && !l.partaking.mirrors
	return r
}
