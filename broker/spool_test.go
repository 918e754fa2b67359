package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/seal"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/internal/spool"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

func openSpool(t testing.TB, cfg spool.Config) *spool.Spool {
	t.Helper()
	s, err := spool.Open(slog.New(slog.DiscardHandler), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // a test that ends it looks at the error itself
	return s
}

// spooling is a broker with a spool whose database can be cut off.
func spooling(t testing.TB, change func(*Config)) (*world, *cable, string) {
	t.Helper()
	pool, cable := plug(t)
	dir := t.TempDir()
	return serveWith(t, pool, Deps{Store: store.New(pool), Spool: openSpool(t, spool.Config{Dir: dir})}, change), cable, dir
}

func (w *world) drained() {
	w.t.Helper()
	w.until("an empty spool", func() bool { return w.b.spooled.disk.Empty() && w.b.spooled.messages() == 0 })
}

func (w *world) buffered(body string) {
	w.t.Helper()
	for _, r := range w.push(body) {
		if r.Status != "buffered" || r.Offset != nil || r.TransactionID == "" || r.MessageID != uuid.Nil.String() {
			w.t.Fatalf("want buffered: %+v", r)
		}
	}
}

func item(queue, partition, txn string) string {
	return fmt.Sprintf(`{"queue":%q,"partition":%q,"transactionId":%q,"payload":{"of":%q}}`, queue, partition, txn, txn)
}

func items(all ...string) string { return `{"items":[` + strings.Join(all, ",") + `]}` }

// all pops and acks a partition empty, and returns the transaction ids in order.
func (w *world) all(queue, partition string) (ids []string) {
	w.t.Helper()
	for {
		p := w.pop(queue + "/partition/" + partition + "?batch=100&autoAck=true&consumerGroup=judge&subscriptionMode=all")
		if len(p.Messages) == 0 {
			return ids
		}
		ids = append(ids, txns(p)...)
	}
}

func TestPushesOfAnOutageAreStoredInOrderAfterIt(t *testing.T) {
	t.Parallel()
	w, cable, _ := spooling(t, nil)
	w.push(items(item("q", "a", "1")))
	cable.pull()
	w.buffered(items(item("q", "a", "2"), item("q", "b", "x"), item("q", "a", "3")))
	w.buffered(items(item("new", "a", "first")))
	w.buffered(items(item("q", "a", "4")))
	if a := w.do("GET", "/livez", ""); a.status != 200 {
		t.Errorf("a broker that takes pushes is not alive: %d", a.status)
	}
	cable.plugIn()
	w.drained()
	w.until("direct pushes", func() bool { return w.push(items(item("q", "a", "last")))[0].Status != "buffered" })
	if d := cmp.Diff([]string{"1", "2", "3", "4", "last"}, w.all("q", "a")); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"x"}, w.all("q", "b")); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"first"}, w.all("new", "a")); d != "" {
		t.Error(d)
	}
}

// What is in the spool is not overtaken by what comes later, although the database would take it.
func TestAPushGoesBehindTheSpooledOnesOfItsPartition(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	w := serveWith(t, pool, Deps{Store: store.New(pool), Spool: openSpool(t, spool.Config{Dir: t.TempDir()})}, nil)
	w.push(items(item("q", "a", "0")))
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	w.buffered(items(item("q", "a", "1")))
	hold(t, w.b.spooled, func() {
		w.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
		w.buffered(items(item("q", "a", "2")))
		if got := w.push(items(item("q", "b", "x")))[0].Status; got != "queued" {
			t.Errorf("a push to another partition is %s", got)
		}
	})
	w.drained()
	if d := cmp.Diff([]string{"0", "1", "2"}, w.all("q", "a")); d != "" {
		t.Error(d)
	}
}

// hold makes a partition one with messages in the spool while f runs, however fast the drain is.
func hold(t *testing.T, l *spooled, f func()) {
	t.Helper()
	lane := spooledLane{DefaultTenant, store.Pair{Queue: "q", Partition: "a"}}
	l.add(lane, 1)
	f()
	l.add(lane, -1)
}

func TestMaintenanceDivertsPushesAndSurvivesARestart(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	dir := t.TempDir()
	disk := openSpool(t, spool.Config{Dir: dir})
	w := serveWith(t, pool, Deps{Store: store.New(pool), Spool: disk}, nil)
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	w.buffered(items(item("q", "a", "1"), item("q", "a", "2")))
	state := w.object("/api/v1/system/maintenance")
	if state["bufferedMessages"] != 2.0 || state["maintenanceMode"] != true {
		t.Errorf("the state is %v", state)
	}
	w.stop()
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	w = serveWith(t, pool, Deps{Store: store.New(pool), Spool: openSpool(t, spool.Config{Dir: dir})}, nil)
	w.buffered(items(item("q", "a", "3")))
	if n := w.object("/api/v1/system/maintenance")["bufferedMessages"]; n != 3.0 {
		t.Errorf("%v messages are buffered: a broker that starts under maintenance drains", n)
	}
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
	w.drained()
	if d := cmp.Diff([]string{"1", "2", "3"}, w.all("q", "a")); d != "" {
		t.Error(d)
	}
}

// A broker that nobody asks anything drains all the same when another one was told that pushes may go on.
func TestTheEndOfMaintenanceReachesAnIdleSpool(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	dir := t.TempDir()
	disk := openSpool(t, spool.Config{Dir: dir})
	w := serveWith(t, pool, Deps{Store: store.New(pool), Spool: disk}, nil)
	other := serve(t, pool, nil)
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	w.buffered(items(item("q", "a", "1")))
	w.stop()
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	w = serveWith(t, pool, Deps{Store: store.New(pool), Spool: openSpool(t, spool.Config{Dir: dir})}, nil)
	w.until("the switch to be known", w.b.switches.known.Load)
	other.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
	w.drained()
	if d := cmp.Diff([]string{"1"}, other.all("q", "a")); d != "" {
		t.Error(d)
	}
}

func TestAnythingButAPushFailsDuringAnOutage(t *testing.T) {
	t.Parallel()
	w, cable, _ := spooling(t, nil)
	w.one("q", "1")
	m := only(t, w.pop("q"))
	cable.pull()
	w.buffered(items(item("q", "a", "2")))
	for name, a := range map[string]answer{
		"ack":         w.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"1","partitionId":%q,"leaseId":%q}`, m.PartitionID, m.LeaseID)),
		"transaction": w.do("POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"q","payload":1}]}]}`),
		"pop":         w.do("GET", "/api/v1/pop/queue/elsewhere", ""),
	} {
		if a.status != 503 || !strings.Contains(a.body, `"code":"database_unavailable"`) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

func TestAFullSpoolFailsHonestly(t *testing.T) {
	t.Parallel()
	pool, cable := plug(t)
	w := serveWith(t, pool, Deps{Store: store.New(pool), Spool: openSpool(t, spool.Config{Dir: t.TempDir(), MaxBytes: 2000})}, nil)
	w.one("q", "0")
	cable.pull()
	taken := 0
	var refused answer
	for i := range 100 {
		refused = w.do("POST", "/api/v1/push", items(item("q", "a", fmt.Sprint("t", i))))
		if refused.status != 201 {
			break
		}
		taken++
	}
	if refused.status != 503 || !strings.Contains(refused.body, "the spool is full") || !strings.Contains(refused.body, `"outcome":"none"`) {
		t.Fatalf("after %d pushes: %d %s", taken, refused.status, refused.body)
	}
	cable.plugIn()
	w.drained()
	if got := w.all("q", "a"); len(got) != taken {
		t.Errorf("%d messages are there, %d were buffered", len(got), taken)
	}
}

// forgetful is a store that stores what it is told to and then says that it does not know.
type forgetful struct {
	*store.Store
	lost atomic.Int64 // calls yet to be lost
}

func (f *forgetful) PushBundle(ctx context.Context, segs []store.Segment) ([]store.PushVerdict, error) {
	v, err := f.Store.PushBundle(ctx, segs)
	if err == nil && f.lost.Add(-1) >= 0 {
		e := wire.Wrap(wire.DatabaseUnavailable, errors.New("the answer was lost"))
		e.Outcome = wire.OutcomeUnknown
		return nil, e
	}
	return v, err
}

// A message that may be stored is looked for when the spool is drained, whether or not its queue has a dedup window;
// one that is pushed with the same id is not mistaken for it.
func TestAnUnknownOutcomeIsNeitherLostNorStoredTwice(t *testing.T) {
	t.Parallel()
	for _, window := range []int{0, 3600} {
		t.Run(fmt.Sprint("window ", window), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t, migrations.Broker)
			db := &forgetful{Store: store.New(pool)}
			w := serveWith(t, pool, Deps{Store: db, Spool: openSpool(t, spool.Config{Dir: t.TempDir()})}, nil)
			w.do("POST", "/api/v1/configure", fmt.Sprintf(`{"queue":"q","options":{"dedupWindowSeconds":%d}}`, window)).want(t, 200)
			w.push(items(item("q", "a", "1")))
			db.lost.Store(1)
			w.buffered(items(item("q", "a", "2"), item("q", "a", "3")))
			w.drained()
			db.lost.Store(1)
			w.until("direct pushes", func() bool { return !w.b.spooled.away.Load() })
			w.buffered(items(item("q", "a", "4")))
			w.drained()
			want := []string{"1", "2", "3", "4"}
			if window == 0 {
				w.push(items(item("q", "a", "2")))
				want = append(want, "2")
			}
			if d := cmp.Diff(want, w.all("q", "a")); d != "" {
				t.Error(d)
			}
		})
	}
}

// A broker that is killed while it drains offers what it was offering again, and stores nothing twice.
func TestAKillInTheDrainStoresNothingTwice(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	dir := t.TempDir()
	disk := openSpool(t, spool.Config{Dir: dir})
	db := &forgetful{Store: store.New(pool)}
	w := serveWith(t, pool, Deps{Store: db, Spool: disk}, nil)
	w.do("POST", "/api/v1/configure", `{"queue":"q","options":{"dedupWindowSeconds":0}}`).want(t, 200)
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	w.buffered(items(item("q", "a", "1"), item("q", "b", "2"), item("q", "a", "3")))
	db.lost.Store(1_000_000) // every answer of the drain is lost, as with a process that dies before it hears it
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`).want(t, 200)
	w.until("a drain that was stored", func() bool { return db.lost.Load() < 1_000_000 })
	copied := filepath.Join(t.TempDir(), "dead")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	w.stop()

	w = serveWith(t, pool, Deps{Store: store.New(pool), Spool: openSpool(t, spool.Config{Dir: copied})}, nil)
	w.drained()
	if d := cmp.Diff([]string{"1", "3"}, w.all("q", "a")); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"2"}, w.all("q", "b")); d != "" {
		t.Error(d)
	}
}

func TestWhatCannotBeDrainedIsKeptAndDoesNotStopTheRest(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	dir := t.TempDir()
	disk := openSpool(t, spool.Config{Dir: dir})
	put := func(r spoolRecord) {
		if err := disk.Append(r.append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	at := store.Pair{Queue: "q", Partition: "a"}
	put(spoolRecord{accepted: time.Now(), tenant: DefaultTenant, pair: at, txn: "good", payload: []byte(`1`)})
	put(spoolRecord{accepted: time.Now().Add(-2 * time.Hour), unsure: true, tenant: DefaultTenant, pair: at, txn: "old", payload: []byte(`1`)})
	put(spoolRecord{accepted: time.Now(), tenant: DefaultTenant, pair: at, txn: strings.Repeat("x", 70_000), payload: []byte(`1`)})
	if err := disk.Append([]byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	put(spoolRecord{accepted: time.Now(), sealed: true, tenant: DefaultTenant, pair: at, txn: "sealed", payload: []byte(`?`)})
	put(spoolRecord{accepted: time.Now().Add(-2 * time.Hour), tenant: DefaultTenant, pair: at, txn: "late", payload: []byte(`1`)})
	w := serveWith(t, pool, Deps{Store: store.New(pool), Spool: disk}, nil)
	w.until("an empty spool", disk.Empty)
	if d := cmp.Diff([]string{"good", "late"}, w.all("q", "a")); d != "" {
		t.Error(d)
	}
	kept := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(dir, "quarantine"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".reason") {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			kept[string(text)] = true
		}
		return err
	})
	if err != nil || len(kept) != 4 {
		t.Errorf("%d records in quarantine: %v, %v", len(kept), kept, err)
	}
}

func TestPayloadsInTheSpoolAreSealed(t *testing.T) {
	t.Parallel()
	ring := ringOf(t)
	w, cable, dir := spooling(t, func(c *Config) { c.Encryption = ring })
	w.do("POST", "/api/v1/configure", `{"queue":"q","options":{"encryptionEnabled":true}}`).want(t, 200)
	cable.pull()
	w.buffered(`{"items":[{"queue":"q","partition":"a","transactionId":"1","payload":{"word":"canary-7391"}}]}`)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "canary-7391") {
			t.Errorf("%s has a payload in clear", filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cable.plugIn()
	w.drained()
	p := w.pop("q/partition/a?batch=1&autoAck=true")
	if got := string(only(t, p).Data); got != `{"word":"canary-7391"}` {
		t.Errorf("the payload came back as %s", got)
	}
}

func ringOf(t *testing.T) *seal.Ring {
	t.Helper()
	k, err := seal.ParseKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		t.Fatal(err)
	}
	return seal.NewRing(k)
}

func FuzzSpoolRecord(f *testing.F) {
	r := spoolRecord{
		accepted: time.UnixMilli(1_800_000_000_000), unsure: true, tenant: uuid.New(), pair: store.Pair{Queue: "orders", Partition: "eu"},
		txn: "t-1", sub: "key:1", payload: []byte(`{"a":1}`),
	}
	f.Add(r.append(nil))
	r.ceiling = 600
	f.Add(r.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := readSpoolRecord(data)
		if err != nil {
			return
		}
		second, err := readSpoolRecord(first.append(nil))
		if err != nil || !slices.Equal(first.payload, second.payload) {
			t.Fatalf("%+v came back as %+v, %v", first, second, err)
		}
		first.payload, second.payload = nil, nil
		if d := cmp.Diff(first, second, cmp.AllowUnexported(spoolRecord{})); d != "" {
			t.Fatal(d)
		}
	})
}

// frozen is a database that takes pushes and says nothing.
type frozen struct {
	Store
	on      atomic.Bool
	reached chan struct{} // a push stands before it
	thaw    chan struct{}
}

func (s *frozen) PushBundle(ctx context.Context, segs []store.Segment) ([]store.PushVerdict, error) {
	if s.on.Load() {
		s.reached <- struct{}{}
		<-s.thaw
	}
	return s.Store.PushBundle(ctx, segs)
}

func (s *frozen) Changes(ctx context.Context, window time.Duration) ([]store.Change, store.Shared, error) {
	if s.on.Load() {
		return nil, store.Shared{}, context.DeadlineExceeded
	}
	return s.Store.Changes(ctx, window)
}

// A database that stands still keeps the pushes that it has. Nobody else waits for it.
func TestPushesDoNotWaitForADatabaseThatStandsStill(t *testing.T) {
	t.Parallel()
	pool, _ := plug(t)
	db := &frozen{Store: store.New(pool), reached: make(chan struct{}, 8), thaw: make(chan struct{})}
	w := serveWith(t, pool, Deps{Store: db, Spool: openSpool(t, spool.Config{Dir: t.TempDir()})}, nil)
	w.one("q", "first")
	db.on.Store(true)
	verdicts := make(chan pushed, 2)
	flying := make(chan pushed, 1)
	go func() { flying <- w.one("q", "flying") }()
	<-db.reached
	for _, txn := range []string{"behind", "far behind"} {
		go func() { verdicts <- w.one("q", txn) }()
	}
	for range 2 {
		if r := <-verdicts; r.Status != "buffered" {
			t.Errorf("%s: %s, want buffered", r.TransactionID, r.Status)
		}
	}
	if r := w.one("other", "later"); r.Status != "buffered" {
		t.Errorf("a push that came later: %s, want buffered", r.Status)
	}
	db.on.Store(false)
	close(db.thaw)
	if r := <-flying; r.Status != "queued" {
		t.Errorf("the push in flight: %s, want queued", r.Status)
	}
	w.drained()
	w.until("the feed is read again", func() bool { return !w.b.feed.away.Load() })
	if got := w.all("q", "Default"); len(got) != 4 || got[0] != "first" || got[1] != "flying" {
		t.Errorf("stored %v", got)
	}
}
