package plans

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queengate/queengate/internal/datadir"
)

// line is the wire to a database, which can be cut.
type line struct {
	mu    sync.Mutex // guards all below
	cut   bool
	conns map[net.Conn]struct{}
}

// errCut is what a machine says whose database is not there.
var errCut = &net.OpError{Op: "dial", Net: "unix", Err: errors.New("the wire is cut")}

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errCut
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		l.conns[c] = struct{}{}
	}
	return c, err
}

// set cuts the wire or mends it.
func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for c := range l.conns {
			c.Close() // the other end may have been first
		}
		clear(l.conns)
	}
}

// over returns a pool to the fixture's database over a line, changed by more.
func (f *fixture) over(l *line, more ...func(*pgxpool.Config)) *pgxpool.Pool {
	f.t.Helper()
	l.conns = map[net.Conn]struct{}{}
	cfg := f.pool.Config()
	cfg.ConnConfig.DialFunc = l.dial
	for _, change := range more {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(pool.Close)
	return pool
}

func testFile(t *testing.T) File {
	return File{Path: filepath.Join(t.TempDir(), "control.book"), Secret: []byte("a secret of the gateway"), Origin: "db:5432/control"}
}

var quiet = slog.New(slog.DiscardHandler)

// running runs the book until the test ends or stop is called.
func running(t *testing.T, b *Book) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// furnish gives the fixture something of everything that a snapshot holds.
func (f *fixture) furnish() {
	f.exec(`SELECT queengate.set_limit_override($1, '{"max_queues": null, "max_parked_pops": 0}'), queengate.set_limit_modes($1, '{"req": "shadow"}')`, f.cluster)
	f.exec(`SELECT queengate.issue_api_key($1, 'k2', $2, 'AAAAAAA2', '{produce,consume}', p_expires_at => '2100-01-01')`, f.cluster, hash(2))
	f.exec(`SELECT queengate.grant_cluster_role($1, 'ann@acme.example', 'viewer'), queengate.grant_cluster_role($1, 'ann@acme.example', 'admin')`, f.cluster)
	f.exec(`SELECT queengate.set_operator('ann@acme.example', true)`)
	f.exec(`SELECT queengate.revoke_session('token-1', now() + interval '1 hour')`)
	f.exec(`SELECT queengate.create_cluster($1, 'other', 'pro', 'eu1')`, f.tenant)
	f.exec(`UPDATE queengate.clusters SET status = 'paused' WHERE slug = 'other'`)
}

// written has a book on the fixture's database write the file.
func (f *fixture) written(file File, more ...func(*pgxpool.Config)) *Book {
	f.t.Helper()
	b := NewBook(quiet, f.over(&line{}, more...), time.Hour, WithFile(file))
	if err := b.Load(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	if err := b.store(); err != nil {
		f.t.Fatal(err)
	}
	return b
}

func sameSnapshot(t *testing.T, got, want *Snapshot) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Snapshot{}), cmp.Comparer(prefixesEqual)); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func TestABookStartsFromItsFileWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	for rule, change := range map[string]func(*pgxpool.Config){
		"rows in binary":                     func(*pgxpool.Config) {},
		"rows as text, as a pooler has them": func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol },
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			f := setup(t, time.Hour)
			f.furnish()
			file := testFile(t)
			before := f.written(file, change)

			after := NewBook(quiet, f.over(&line{cut: true}), time.Hour, WithFile(file))
			if err := after.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			sameSnapshot(t, after.Snapshot(), before.Snapshot())
			if !after.Synced().Equal(before.Synced()) {
				t.Errorf("synced: got %v, want that of the file, %v", after.Synced(), before.Synced())
			}
			if fact, err := after.Health(t.Context()); err != nil || !strings.HasPrefix(fact, "away since ") {
				t.Errorf("health: %q, %v", fact, err)
			}
			if s := after.Snapshot(); s.KeyByHash([32]byte(hash(9))) != nil || s.ClusterBySlug("nope") != nil || !s.Revoked("token-1") {
				t.Error("who is not in the file must not be known, and who is revoked there must be")
			}
		})
	}
}

// TestADatabaseThatHangsHoldsUpNoStart: dials that neither fail nor succeed end with the start's patience alone.
func TestADatabaseThatHangsHoldsUpNoStart(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	file := testFile(t)
	f.written(file)
	b := NewBook(quiet, f.over(&line{}, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		c.ConnConfig.ConnectTimeout = 0
	}), time.Hour, WithFile(file))
	if err := b.Load(context.Background()); err != nil || b.Snapshot().ClusterBySlug("acme-main") == nil {
		t.Errorf("Load: %v", err)
	}
}

// TestWhatWaitingDoesNotCureFailsAStart: a file is for a database that is away, not for a wrong address.
func TestWhatWaitingDoesNotCureFailsAStart(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	file := testFile(t)
	f.written(file)
	b := NewBook(quiet, f.over(&line{}, func(c *pgxpool.Config) { c.ConnConfig.Database = "nope" }), time.Hour, WithFile(file))
	if err := b.Load(t.Context()); err == nil || b.Snapshot() != nil {
		t.Errorf("got %v, want an error", err)
	}
}

// TestWhatIsTakenAwayIsInNoFileWhenItIsPublished: whatever the moment of a kill, a key that was refused because the
// database does not know it is not revived by the file.
func TestWhatIsTakenAwayIsInNoFileWhenItIsPublished(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		sql  string
		arg  func(*fixture) any
		want bool // the file may stay: nobody has less
	}{
		"a key is revoked":            {"SELECT queengate.revoke_api_key($1, (SELECT id FROM queengate.api_keys LIMIT 1))", func(f *fixture) any { return f.cluster }, false},
		"a session is revoked":        {"SELECT queengate.revoke_session($1, now() + interval '1 hour')", func(*fixture) any { return "token-2" }, false},
		"a tenant is suspended":       {"SELECT queengate.set_tenant_status($1, 'suspended')", func(f *fixture) any { return f.tenant }, false},
		"a cluster's limits change":   {"SELECT queengate.set_limit_override($1, '{\"max_queues\": 1}')", func(f *fixture) any { return f.cluster }, false},
		"a tenant is deleted":         {"SELECT queengate.delete_tenant($1, true)", func(f *fixture) any { return f.tenant }, false},
		"a cluster is made":           {"SELECT queengate.create_cluster($1, 'more', 'pro', 'eu1')", func(f *fixture) any { return f.tenant }, true},
		"a first role is given":       {"SELECT queengate.grant_cluster_role($1, 'ann@acme.example', 'viewer')", func(f *fixture) any { return f.cluster }, true},
		"a change of nothing we read": {"UPDATE queengate.tenants SET name = 'x' WHERE id = $1", func(f *fixture) any { return f.tenant }, true},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			f := setup(t, time.Hour)
			file := testFile(t)
			b := f.written(file)
			published := false
			b.OnChange(func(_, _ *Snapshot) {
				published = true
				_, err := os.Stat(file.Path)
				if there := err == nil; there != c.want {
					t.Errorf("at the moment it is published the file is there: %v, want %v", there, c.want)
				}
			})
			// A write that began before it must not bring the old file back.
			synced := b.Synced()
			b.mu.Lock()
			old, err := (&document{Origin: file.Origin, Synced: synced, Rows: b.keeper.raw}).seal(file.Secret)
			b.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			draft, err := datadir.NewDraft(file.Path, old, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			b.keeper.mu.Lock()
			era := b.keeper.era
			b.keeper.mu.Unlock()

			f.exec(c.sql, c.arg(f))
			b.look(t.Context())
			if !published {
				t.Fatal("the change was not seen")
			}
			if err := b.keeper.place(draft, era, synced); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(file.Path); (err == nil) != c.want {
				t.Errorf("after the late write the file is there: %v, want %v", err == nil, c.want)
			}
			if err := b.store(); err != nil {
				t.Fatal(err)
			}
			after := NewBook(quiet, f.over(&line{cut: true}), time.Hour, WithFile(file))
			if err := after.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			sameSnapshot(t, after.Snapshot(), b.Snapshot())
		})
	}
}

// TestTheBookIsReplacedWhenTheDatabaseIsBack: what was revoked while nobody could hear of it holds at once, in memory and
// in the file.
func TestTheBookIsReplacedWhenTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	file, wire := testFile(t), &line{cut: true}
	f.written(file)
	b := NewBook(quiet, f.over(wire), 10*time.Millisecond, WithFile(file))
	if err := b.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := running(t, b)
	f.exec("SELECT queengate.revoke_api_key($1, $2)", f.cluster, f.key)
	if b.Snapshot().KeyByID(f.key) == nil {
		t.Error("the key of the file is not known while the database is away")
	}
	wire.set(false)
	eventually(t, "the revocation", func() bool { return b.Snapshot().KeyByID(f.key) == nil })
	if fact, err := b.Health(t.Context()); err != nil || fact != "read" {
		t.Errorf("health: %q, %v", fact, err)
	}
	wire.set(true) // and away again
	stop()
	after := NewBook(quiet, f.over(&line{cut: true}), time.Hour, WithFile(file))
	if err := after.Load(t.Context()); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err) // none is fine: the process ended before it was written
	}
	if s := after.Snapshot(); s != nil && s.KeyByID(f.key) != nil {
		t.Error("the file revives a key that the database took back")
	}
}

// TestABookWithoutADatabaseComesToItsEnd: from memory as from the file nothing is in force for longer than the limit, and
// everything is again when the database is back.
func TestABookWithoutADatabaseComesToItsEnd(t *testing.T) {
	t.Parallel()
	for rule, fromFile := range map[string]bool{"from memory": false, "from the file": true} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			f := setup(t, time.Hour)
			file, wire := testFile(t), &line{}
			f.written(file)
			wire.cut = fromFile
			b := NewBook(quiet, f.over(wire), 10*time.Millisecond, WithFile(file))
			if err := b.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			wire.set(true)
			b.synced.Store(time.Now().Add(time.Second - b.maxAge).UnixNano()) // most of its time is over
			running(t, b)
			eventually(t, "the end", func() bool { return b.Snapshot().ClusterBySlug("acme-main") == nil })
			if _, err := b.Health(t.Context()); err == nil || !strings.Contains(err.Error(), "in force no more") {
				t.Errorf("health: %v", err)
			}
			if b.Snapshot().KeyByID(f.key) != nil || len(b.Snapshot().Cells()) != 0 {
				t.Error("something is still known")
			}
			wire.set(false)
			eventually(t, "the database to be followed again", func() bool { return b.Snapshot().KeyByID(f.key) != nil })
		})
	}
}

// TestAFileWithoutNewsGetsNoOlder: as long as the database answers, so does the file's age.
func TestAFileWithoutNewsGetsNoOlder(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	file := testFile(t)
	b := NewBook(quiet, f.over(&line{}), 10*time.Millisecond, WithFile(file), WithMaxAge(time.Minute))
	if err := b.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	running(t, b)
	eventually(t, "the first file", func() bool { return b.keeper.stored.Load() != 0 })
	first := b.keeper.stored.Load()
	eventually(t, "a younger file", func() bool { return b.keeper.stored.Load() > first })
}

// TestAFileThatCannotBeWrittenIsCounted: the gateway serves on, and says that a start would fail.
func TestAFileThatCannotBeWrittenIsCounted(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	file := testFile(t)
	file.Path = filepath.Join(file.Path, "no folder", "control.book")
	b := NewBook(quiet, f.over(&line{}), time.Hour, WithFile(file))
	if err := b.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	running(t, b)
	eventually(t, "a failure", func() bool { return b.keeper.failed.Load() > 0 })
	if b.Snapshot().ClusterBySlug("acme-main") == nil {
		t.Error("the book is not in force")
	}
}

// TestAStatementThatFailsIsAnError: rows that do not come have no columns to ask for.
func TestAStatementThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	f := setup(t, time.Hour)
	for _, keep := range []bool{false, true} {
		conn, err := pgx.ConnectConfig(t.Context(), f.pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fetch(t.Context(), tx, &changes{all: true}, keep); err != nil { // now the statements are prepared
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT 1 / 0"); err == nil {
			t.Fatal("the database answers anything")
		}
		if c, err := fetch(t.Context(), tx, &changes{all: true}, keep); err == nil {
			t.Errorf("got %v and no error", c)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestEachStatementIsReadOnce: kept rows go by the text of the statement that reads them.
func TestEachStatementIsReadOnce(t *testing.T) {
	t.Parallel()
	_, asked := newReading(&changes{all: true})
	seen := map[string]bool{}
	for _, q := range asked {
		if seen[q.sql] {
			t.Errorf("two queries are %s", q.sql)
		}
		seen[q.sql] = true
	}
	for sql := range grants {
		if !seen[sql] {
			t.Errorf("nobody reads %s", sql)
		}
	}
}
