package broker

import (
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/wire"
)

const (
	// maxProvisions bounds the statements that find or make partitions in the database at a time.
	maxProvisions = 4
	// maxProvisionPairs bounds the partitions of a statement that several calls share: it holds the tenant's row for so long.
	maxProvisionPairs = 512
)

// provisioner finds partitions, and makes those that are missing. Whoever makes one holds the row of its tenant, so of
// several statements of a tenant all but one would wait there, each with a session of the pool that other tenants lack. So a
// tenant has one in flight; the calls that come meanwhile share the next one; and the tenants take turns for the few places
// that there are. Safe for concurrent use.
type provisioner struct {
	run    func(tenant uuid.UUID, pairs []store.Pair, caps store.Caps) ([]store.Partition, error)
	places *fair.Places[uuid.UUID]

	mu     sync.Mutex // guards all below
	budget *fair.Budget[uuid.UUID]
	lines  map[uuid.UUID][]*provisionCall // by tenant with a statement in flight: who waits for it to end
}

// provisionCall is what one request wants.
type provisionCall struct {
	pairs []store.Pair
	caps  store.Caps
	found []store.Partition
	err   error
	done  chan struct{}
}

func newProvisioner(weigh func(uuid.UUID) fair.Weight, run func(uuid.UUID, []store.Pair, store.Caps) ([]store.Partition, error)) *provisioner {
	return &provisioner{
		run:    run,
		places: fair.NewPlaces(maxProvisions, 1, maxVisitors, weigh),
		budget: fair.NewBudget[uuid.UUID](maxVisitors),
		lines:  map[uuid.UUID][]*provisionCall{},
	}
}

// do is store.Provision. It does no more than wait when other calls of the tenant are in the database.
func (p *provisioner) do(tenant uuid.UUID, pairs []store.Pair, caps store.Caps) ([]store.Partition, error) {
	c := &provisionCall{pairs: pairs, caps: caps, done: make(chan struct{})}
	p.mu.Lock()
	line, busy := p.lines[tenant]
	if busy && !p.budget.Hold(tenant, 1) {
		p.mu.Unlock()
		return nil, errTooManyProvisions
	}
	if busy {
		line = append(line, c)
	}
	p.lines[tenant] = line
	p.mu.Unlock()
	if !busy {
		p.serve(tenant, []*provisionCall{c})
	}
	<-c.done
	return c.found, c.err
}

var errTooManyProvisions = &wire.Error{
	Code: wire.BrokerOverloaded, Detail: "too many new partitions are waiting", RetryAfter: time.Second, Outcome: wire.OutcomeNone,
}

// serve answers calls of a tenant, and sees to it that those are answered that came meanwhile.
func (p *provisioner) serve(tenant uuid.UUID, calls []*provisionCall) {
	defer func() {
		for _, c := range calls {
			close(c.done)
		}
		if next := p.next(tenant); next != nil {
			go p.serve(tenant, next)
		}
	}()
	if !p.places.Enter(tenant, 0, databaseWait, nil) {
		for _, c := range calls {
			c.err = errTooManyProvisions
		}
		return
	}
	defer p.places.Leave()
	if !p.together(tenant, calls) {
		for _, c := range calls {
			c.found, c.err = p.run(tenant, c.pairs, c.caps)
		}
	}
	if err := calls[len(calls)-1].err; databaseAway(err) {
		// Nobody who waits behind would fare better, and each statement waits for a session as long as it may.
		for _, c := range p.rest(tenant) {
			c.err = err
			close(c.done)
		}
	}
}

// databaseAway reports whether the database could not be asked, or did not answer.
func databaseAway(err error) bool {
	return err != nil && wire.AsError(err).Code == wire.DatabaseUnavailable
}

// rest takes all calls that wait.
func (p *provisioner) rest(tenant uuid.UUID) []*provisionCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.lines[tenant]
	p.lines[tenant] = nil
	p.budget.Release(tenant, int64(len(line)))
	return line
}

// together answers several calls with one statement. It reports false when they must be answered one by one: the plan may
// have room for some of them.
func (p *provisioner) together(tenant uuid.UUID, calls []*provisionCall) bool {
	if len(calls) == 1 {
		return false
	}
	var pairs []store.Pair
	for _, c := range calls {
		pairs = append(pairs, c.pairs...)
	}
	found, err := p.run(tenant, pairs, calls[0].caps)
	if err != nil && !databaseAway(err) {
		return false
	}
	for _, c := range calls {
		if c.err = err; err == nil {
			n := len(c.pairs)
			c.found, found = found[:n:n], found[n:]
		}
	}
	return true
}

// next takes the calls that share the tenant's next statement, in the order in which they came. nil: none waits.
func (p *provisioner) next(tenant uuid.UUID) []*provisionCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.lines[tenant]
	if len(line) == 0 {
		delete(p.lines, tenant)
		return nil
	}
	n, pairs := 1, len(line[0].pairs)
	for n < len(line) && sameCaps(line[n].caps, line[0].caps) && pairs+len(line[n].pairs) <= maxProvisionPairs {
		pairs += len(line[n].pairs)
		n++
	}
	p.budget.Release(tenant, int64(n))
	p.lines[tenant] = slices.Clone(line[n:])
	return line[:n]
}

func sameCaps(a, b store.Caps) bool {
	same := func(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
	return a.Unbounded == b.Unbounded && same(a.MaxQueues, b.MaxQueues) && same(a.MaxPartitions, b.MaxPartitions)
}

// backlog counts the calls that wait behind one of their tenant, and the statements that wait for a place.
func (p *provisioner) backlog() backlog {
	s := p.places.Stats()
	p.mu.Lock()
	defer p.mu.Unlock()
	return backlog{int(p.budget.Used()) + s.Waiting, max(p.budget.Owners(), s.Owners), p.budget.Refused() + s.Refused, s.Turns}
}
