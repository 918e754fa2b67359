package store

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/internal/embedpg"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// The baseline is the release before this one: its database with a little of everything in it, and the statements of its
// brokers. `make baseline` records both anew; that is done once, with a release (docs/adr/0007-old-and-new-side-by-side.md).
var record = flag.Bool("baseline", false, "record the schema and the statements as those of the release before")

const (
	baselineSchema     = "../../migrations/testdata/broker.sql"
	baselineStatements = "testdata/statements.json"
)

// oldStatement is a statement of the release before: its text, and the types that its broker sends and expects.
type oldStatement struct {
	SQL        string   `json:"sql"`
	Parameters []string `json:"parameters"`
	Columns    []string `json:"columns"` // name and type
}

func TestTheBaselineIsRecorded(t *testing.T) {
	if !*record {
		t.Skip("make baseline does it")
	}
	w := newWorld(t)
	w.inhabit()
	bins, err := embedpg.Find(0)
	if err != nil {
		t.Fatal(err)
	}
	dump := exec.Command(filepath.Join(bins.Dir, "pg_dump"), "--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=50", "-d", w.pool.Config().ConnString())
	text, err := dump.Output()
	if err != nil {
		t.Fatal(err)
	}
	var schema strings.Builder
	for line := range strings.Lines(string(text)) {
		// What pg_dump tells psql, and humans.
		if !strings.HasPrefix(line, `\`) && !strings.HasPrefix(line, "-- Dumped") {
			schema.WriteString(line)
		}
	}
	conn := w.connect()
	all := make([]oldStatement, len(statements))
	for i, sql := range statements {
		all[i] = w.describe(conn, sql)
	}
	golden, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{baselineSchema: schema.String(), baselineStatements: string(golden) + "\n"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// inhabit puts a little of everything that a broker stores into the database.
func (w *world) inhabit() {
	w.t.Helper()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	l, other := w.lane("customer-1"), w.lane("customer-2")
	must(w.enroll(w.tenant, "billing", w.queue, Seed{Mode: wire.SeedAll}))
	for _, p := range []lane{l, other} {
		frames := []segment.Frame{{TransactionID: "a", Payload: []byte(`1`)}, {TransactionID: "b", Payload: []byte(`2`)}, {TransactionID: "c", Payload: []byte(`3`)}}
		vs, err := w.store.PushBundle(w.ctx, []Segment{{
			PartitionID: p.id, Tenant: w.tenant, Count: 3, RawBytes: 3, DedupWindow: time.Hour,
			Blob: segment.Encode(nil, frames), Hashes: segment.AppendHashes(nil, frames),
		}})
		must(err)
		if vs[0].Status != PushStored {
			w.t.Fatalf("push: %+v", vs[0])
		}
	}
	lease, _ := w.lease(l, 2)
	w.ack(w.group(l, lease, AckItem{Hash: segment.HashID("a"), Status: wire.AckDLQ, Offset: 0, TransactionID: "a", Reason: "unreadable"}))
	w.lease(other, 1)
	must(w.store.SetSwitch(w.ctx, StateMaintenance, false))
	must(w.store.AddTrace(w.ctx, w.tenant, &Trace{ID: uuid.New(), Partition: l.uid, TransactionID: "a", Hash: segment.HashID("a"), Event: "seen", Data: []byte(`{"by":"a test"}`), Names: []string{"journey"}}))
	_, err := w.store.FoldUsage(w.ctx)
	must(err)
}

func (w *world) connect() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.ConnectConfig(w.ctx, w.pool.Config().ConnConfig)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its database goes next
	return conn
}

func (w *world) describe(conn *pgx.Conn, sql string) oldStatement {
	w.t.Helper()
	d, err := describeOn(w.ctx, conn, sql)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, sql)
	}
	return d
}

// describeOn asks the server for the types of a statement.
func describeOn(ctx context.Context, conn *pgx.Conn, sql string) (d oldStatement, err error) {
	s, err := conn.PgConn().Prepare(ctx, "", sql, nil)
	if err != nil {
		return d, err
	}
	d = oldStatement{SQL: sql, Parameters: []string{}, Columns: []string{}}
	name := func(oid uint32) (name string, err error) {
		err = conn.QueryRow(ctx, "SELECT $1::oid::regtype::text", oid).Scan(&name)
		return name, err
	}
	for _, oid := range s.ParamOIDs {
		of, err := name(oid)
		if err != nil {
			return d, err
		}
		d.Parameters = append(d.Parameters, of)
	}
	for _, f := range s.Fields {
		of, err := name(f.DataTypeOID)
		if err != nil {
			return d, err
		}
		d.Columns = append(d.Columns, f.Name+" "+of)
	}
	return d, nil
}

// before returns a database as the release before left it.
func before(t *testing.T) *pgx.Conn {
	t.Helper()
	schema, err := os.ReadFile(baselineSchema)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its database goes next
	if _, err := conn.PgConn().Exec(t.Context(), string(schema)).ReadAll(); err != nil {
		t.Fatalf("the schema of the release before: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "RESET ALL"); err != nil { // pg_dump empties search_path
		t.Fatal(err)
	}
	return conn
}

func oldStatements(t *testing.T) (all []oldStatement) {
	t.Helper()
	text, err := os.ReadFile(baselineStatements)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("only %d statements are recorded", len(all))
	}
	return all
}

// While a cell is upgraded its brokers are of two releases on one schema, the newer one. What the older ones say must
// mean there what it meant before: same types, same columns, same effects as far as arguments of nothing show them.
func TestBrokersOfTheReleaseBeforeWorkOnThisSchema(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	old, upgraded := before(t), before(t)
	if err := migrations.Apply(ctx, upgraded.Config(), migrations.Broker); err != nil {
		t.Fatal(err)
	}
	for _, s := range oldStatements(t) {
		now, err := describeOn(ctx, upgraded, s.SQL)
		if err != nil {
			t.Errorf("a statement of the release before does not go any more: %v\n%s", err, s.SQL)
			continue
		}
		if d := cmp.Diff(s, now); d != "" {
			t.Errorf("a statement of the release before changed its types (-before +now):\n%s", d)
			continue
		}
		was, is := s.run(t, old), s.run(t, upgraded)
		if lists := strings.Contains(s.SQL, "FROM pg_stat_user_tables"); lists && !strings.HasPrefix(is, "error") {
			continue // it lists the tables for people, and a release may add some
		}
		if was != is {
			t.Errorf("a statement of the release before had %s and has %s:\n%s", was, is, s.SQL)
		}
	}
}

// run executes the statement with nothing for every argument, undoes it, and says what came of it.
func (s *oldStatement) run(t *testing.T, conn *pgx.Conn) (outcome string) {
	t.Helper()
	ctx := t.Context()
	args := make([][]byte, len(s.Parameters))
	for i, of := range s.Parameters {
		args[i] = []byte(nothing(t, of))
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
	}()
	rows := 0
	r := conn.PgConn().ExecParams(ctx, s.SQL, args, nil, nil, nil)
	for r.NextRow() {
		rows++
	}
	var refusal *pgconn.PgError
	switch tag, err := r.Close(); {
	case errors.As(err, &refusal):
		return "error " + refusal.Code
	case err != nil:
		t.Fatal(err)
	default:
		return fmt.Sprintf("%d rows, %s", rows, tag)
	}
	return ""
}

// nothing is the least value of a type, in text.
func nothing(t *testing.T, of string) string {
	t.Helper()
	if strings.HasSuffix(of, "[]") {
		return "{}"
	}
	values := map[string]string{
		"boolean": "f", "smallint": "0", "integer": "0", "bigint": "0", "numeric": "0", "double precision": "0", "text": "", `"char"`: "", "bytea": "",
		"uuid": uuid.Nil.String(), "timestamp with time zone": "2000-01-01", "interval": "0", "json": "{}", "jsonb": "{}",
	}
	v, known := values[of]
	if !known {
		t.Fatalf("no value of type %s is known, among %v", of, slices.Sorted(maps.Keys(values)))
	}
	return v
}

// What the release before stored is still there, and this release reads it.
func TestTheDataOfTheReleaseBeforeIsKept(t *testing.T) {
	t.Parallel()
	conn := before(t)
	counts := func() map[string]int64 {
		out := map[string]int64{}
		rows, err := conn.Query(t.Context(), "SELECT relname FROM pg_class WHERE relnamespace = 'queen'::regnamespace AND relkind = 'r'")
		if err != nil {
			t.Fatal(err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			var n int64
			if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM "+pgx.Identifier{"queen", name}.Sanitize()).Scan(&n); err != nil {
				t.Fatal(err)
			}
			out[name] = n
		}
		return out
	}
	was := counts()
	if was["log_segments"] < 2 || was["log_dlq"] < 1 || was["log_consumers"] < 2 {
		t.Fatalf("the baseline is empty: %v", was)
	}
	if err := migrations.Apply(t.Context(), conn.Config(), migrations.Broker); err != nil {
		t.Fatal(err)
	}
	is := counts()
	for name, n := range was {
		// A migration may add to what the cell keeps for itself, as a task of upkeep.
		if is[name] != n && (is[name] < n || cellTables[name] == "") {
			t.Errorf("%s had %d rows and has %d", name, n, is[name])
		}
	}
}
