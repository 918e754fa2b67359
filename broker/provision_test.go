package broker

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/fair"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// maker stands in for the database: it notes what each statement asks, and holds it until it is let go.
type maker struct {
	*provisioner
	began chan []store.Pair
	end   chan error
}

func newMaker() *maker {
	m := &maker{began: make(chan []store.Pair), end: make(chan error)}
	m.provisioner = newProvisioner(func(uuid.UUID) fair.Weight { return fair.Usual }, func(tenant uuid.UUID, pairs []store.Pair, _ store.Caps) ([]store.Partition, error) {
		m.began <- pairs
		if err := <-m.end; err != nil {
			return nil, err
		}
		found := make([]store.Partition, len(pairs))
		for i, p := range pairs {
			found[i] = store.Partition{Tenant: tenant, Queue: p.Queue, Name: p.Partition}
		}
		return found, nil
	})
	return m
}

// ask starts a call whose partitions are named, and returns once it is under way or waits.
func (m *maker) ask(tenant uuid.UUID, caps store.Caps, names ...string) (answer func() error) {
	var pairs []store.Pair
	for _, n := range names {
		pairs = append(pairs, store.Pair{Queue: "q", Partition: n})
	}
	ended := make(chan error, 1)
	go func() {
		found, err := m.do(tenant, pairs, caps)
		for i := range found {
			if found[i].Name != names[i] || found[i].Tenant != tenant {
				err = fmt.Errorf("%v was answered %+v", names, found)
			}
		}
		if err == nil && len(found) != len(names) {
			err = fmt.Errorf("%v was answered %d partitions", names, len(found))
		}
		ended <- err
	}()
	synctest.Wait()
	return func() error { return <-ended }
}

// expect lets the next statement end, which must ask for so many partitions.
func (m *maker) expect(t *testing.T, pairs int, end error) {
	t.Helper()
	if got := <-m.began; len(got) != pairs {
		t.Errorf("a statement asks for %d partitions, want %d", len(got), pairs)
	}
	m.end <- end
}

func TestCallsThatWaitShareTheNextStatement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, tenant := newMaker(), uuid.New()
		few := store.Caps{MaxQueues: new(int64(3))}
		answers := []func() error{m.ask(tenant, store.Caps{}, "a")}
		for _, c := range []struct {
			caps  store.Caps
			names []string
		}{{store.Caps{}, []string{"b", "c"}}, {store.Caps{}, []string{"d"}}, {few, []string{"e"}}, {store.Caps{MaxQueues: new(int64(3))}, []string{"f", "g"}}} {
			answers = append(answers, m.ask(tenant, c.caps, c.names...))
		}
		for _, n := range []int{1, 3, 3} { // those of other caps are another statement
			m.expect(t, n, nil)
		}
		for _, answer := range answers {
			if err := answer(); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if n := len(m.lines); n != 0 {
			t.Errorf("%d lines are left", n)
		}
	})
}

func TestARefusalIsOfOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, tenant := newMaker(), uuid.New()
		full := &wire.Error{Code: wire.QuotaExceeded}
		first, big, small := m.ask(tenant, store.Caps{}, "a"), m.ask(tenant, store.Caps{}, "b", "c"), m.ask(tenant, store.Caps{}, "d")
		m.expect(t, 1, nil)
		m.expect(t, 3, full) // together they are too many
		m.expect(t, 2, full)
		m.expect(t, 1, nil)
		if err := first(); err != nil {
			t.Error(err)
		}
		if err := big(); err != full {
			t.Errorf("what does not fit: %v", err)
		}
		if err := small(); err != nil {
			t.Errorf("what fits: %v", err)
		}
	})
}

func TestNobodyWaitsForADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, tenant := newMaker(), uuid.New()
		gone := &wire.Error{Code: wire.DatabaseUnavailable}
		var answers []func() error
		for i := range 3 {
			answers = append(answers, m.ask(tenant, store.Caps{MaxQueues: new(int64(i))}, "p")) // three statements, each in vain
		}
		m.expect(t, 1, gone)
		for _, answer := range answers {
			if err := answer(); err != gone {
				t.Errorf("got %v", err)
			}
		}
		again := m.ask(tenant, store.Caps{}, "p")
		m.expect(t, 1, nil)
		if err := again(); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestATenantHasOneStatementAndAllHaveFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMaker()
		var tenants []uuid.UUID
		var answers []func() error
		for range maxProvisions + 2 {
			tenants = append(tenants, uuid.New())
		}
		for _, tenant := range tenants {
			answers = append(answers, m.ask(tenant, store.Caps{}, "a"), m.ask(tenant, store.Caps{}, "b"))
		}
		under := 0 // way
		for under < len(answers) {
			synctest.Wait()
			n := 0
			for {
				select {
				case <-m.began:
					n++
					continue
				default:
				}
				break
			}
			m.mu.Lock()
			left := len(m.lines)
			m.mu.Unlock()
			if n != min(maxProvisions, left) {
				t.Errorf("%d statements at a time, of %d tenants that have calls left", n, left)
			}
			under += n
			for range n {
				m.end <- nil
			}
			if n == 0 {
				t.FailNow()
			}
		}
		for _, answer := range answers {
			if err := answer(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestATenantThatMakesPartitionsLeavesTheSessionsToOthers: its row is taken, and nothing that it asks for can go on.
func TestATenantThatMakesPartitionsLeavesTheSessionsToOthers(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	pool := pgtest.New(t, migrations.Broker)
	w := serveFrom(t, pool, store.New(pool), m.tenancy)
	maker, neighbour := m.headers(tenantA, wire.AccessReadWrite), m.headers(tenantB, wire.AccessReadWrite)
	push := func(headers []string, partition int) error {
		a, err := w.try("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"q","partition":"p%d","payload":1}]}`, partition), headers...)
		if err == nil && a.status != 201 {
			err = fmt.Errorf("%d %s", a.status, a.body)
		}
		return err
	}
	for _, headers := range [][]string{maker, neighbour} {
		if err := push(headers, 0); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM queen.tenants WHERE tenant_id = $1 FOR UPDATE", tenantA); err != nil {
		t.Fatal(err)
	}
	const many = 100 // sessions has the pool fewer
	var wg sync.WaitGroup
	failed := make([]error, many)
	for i := range many {
		wg.Go(func() { failed[i] = push(maker, 1+i) })
	}
	w.until("they wait", func() bool { return w.b.provisions.backlog().pending == many-1 })
	if n := pool.Stat().AcquiredConns(); n > 1+maxProvisions {
		t.Errorf("%d sessions are taken", n)
	}
	for i := range 3 { // two that are there and one that is new
		if err := push(neighbour, i%2*1000); err != nil {
			t.Errorf("the neighbour: %v", err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if i := slices.IndexFunc(failed, func(err error) bool { return err != nil }); i >= 0 {
		t.Error(failed[i])
	}
}
