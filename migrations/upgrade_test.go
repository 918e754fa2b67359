package migrations_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
)

func connect(t *testing.T, sets ...migrations.Set) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t, sets...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its database goes next
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
}

// A routine that changes and keeps its generation would be put back by whichever older broker starts last.
func TestChangedRoutinesHaveANewGeneration(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	schema, err := os.ReadFile("testdata/broker.sql")
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, string(schema))
	rows, err := conn.Query(t.Context(), "SELECT name, hash FROM public.queengate_routines WHERE name LIKE 'broker/%'")
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]string{}
	var name, hash string
	if _, err := pgx.ForEachRow(rows, []any{&name, &hash}, func() error { before[name] = hash; return nil }); err != nil {
		t.Fatal(err)
	}
	generation := 0 // there were none at first
	if text, ok := before["broker/generation"]; ok {
		if generation, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	var changed []string
	for name, hash := range migrations.Routines(migrations.Broker) {
		if before[name] != hash {
			changed = append(changed, name)
		}
	}
	if got := migrations.Generations[migrations.Broker]; len(changed) > 0 && got <= generation {
		t.Errorf("%v changed since the last release, whose generation is %d: want a higher one than %d", changed, generation, got)
	}
}

func TestTheSchemaIsCheckedBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	const routines = "UPDATE public.queengate_routines SET hash = "
	for rule, tc := range map[string]struct {
		sql  string
		want string // in the text; "" is no error
	}{
		"as this program makes it":                {"SELECT 1", ""},
		"no schema":                               {"DROP TABLE public.queengate_broker_version", "there is none"},
		"a migration is missing":                  {"DELETE FROM public.queengate_broker_version WHERE version_id = (SELECT max(version_id) FROM public.queengate_broker_version)", "is needed"},
		"a newer program was here":                {"INSERT INTO public.queengate_broker_version (version_id, is_applied) VALUES (90000, true)", ""},
		"routines of an older generation":         {routines + "'0' WHERE name = 'broker/generation'", "generation 0"},
		"routines from before there were any":     {"DELETE FROM public.queengate_routines WHERE name = 'broker/generation'", "generation 0"},
		"no routines":                             {"DROP TABLE public.queengate_routines", "generation 0"},
		"a routine differs":                       {routines + "'x' WHERE name = 'broker/routines/push.sql'", "broker/routines/push.sql differ"},
		"a routine of a newer generation":         {routines + "CASE WHEN name LIKE '%/generation' THEN '999' ELSE 'x' END", ""},
		"the generation is no number":             {routines + "'x' WHERE name = 'broker/generation'", "no number"},
		"the other schema is no business of ours": {"DROP TABLE public.queengate_gateway_version", ""},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, migrations.Broker, migrations.Gateway)
			exec(t, conn, tc.sql)
			err := migrations.Check(t.Context(), conn.PgConn(), migrations.Broker)
			outdated := tc.want != "" && tc.want != "no number"
			if (err == nil) != (tc.want == "") || errors.Is(err, migrations.ErrOutdated) != outdated || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if outdated && !strings.Contains(err.Error(), "queengate migrate") {
				t.Errorf("%v does not say what to do", err)
			}
		})
	}
}

// An older program that starts after the newer one has migrated must not put its own routines back.
func TestAnOlderProgramLeavesANewerSchemaAlone(t *testing.T) {
	t.Parallel()
	conn := connect(t, migrations.Broker)
	exec(t, conn, `INSERT INTO public.queengate_broker_version (version_id, is_applied) VALUES (90000, true);
UPDATE public.queengate_routines SET hash = CASE WHEN name LIKE '%/generation' THEN '999' ELSE 'newer' END;
CREATE OR REPLACE FUNCTION queen.safe_time(OUT at timestamptz, OUT degraded boolean) LANGUAGE sql AS 'SELECT NULL::timestamptz, true'`)
	state := func() (out string) {
		if err := conn.QueryRow(t.Context(), `SELECT (SELECT string_agg(name || hash, ' ' ORDER BY name) FROM public.queengate_routines)
  || (SELECT prosrc FROM pg_proc WHERE proname = 'safe_time') || (SELECT max(version_id) FROM public.queengate_broker_version)`).Scan(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	was := state()
	if err := migrations.Apply(t.Context(), conn.Config(), migrations.Broker); err != nil {
		t.Fatal(err)
	}
	if is := state(); is != was {
		t.Errorf("got %s\nwant %s", is, was)
	}
}

func TestTheTurnToMigrateIsWaitedForWithinBounds(t *testing.T) {
	t.Parallel()
	conn := connect(t)
	exec(t, conn, "SELECT pg_advisory_lock(778120010)")
	if err := migrations.ApplyWithin(t.Context(), conn.Config(), migrations.Broker, 50*time.Millisecond); !errors.Is(err, migrations.ErrBusy) {
		t.Errorf("got %v, want %v", err, migrations.ErrBusy)
	}
	exec(t, conn, "SELECT pg_advisory_unlock_all()")
	if err := migrations.Apply(t.Context(), conn.Config(), migrations.Broker); err != nil {
		t.Errorf("when the other is done: %v", err)
	}
}

func TestAMigrationGivesWayAndComesAgain(t *testing.T) {
	t.Parallel()
	locked, broken := &pgconn.PgError{Code: "55P03"}, errors.New("broken")
	for rule, tc := range map[string]struct {
		answers []error
		asked   int
		want    error
	}{
		"free":                   {[]error{nil}, 1, nil},
		"free the third time":    {[]error{locked, locked, nil}, 3, nil},
		"never free":             {[]error{locked}, 20, locked},
		"broken":                 {[]error{broken}, 1, broken},
		"broken the second time": {[]error{locked, broken}, 2, broken},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				err := migrations.GivingWay(t.Context(), func() error {
					asked++
					return tc.answers[min(asked, len(tc.answers))-1]
				})
				if !errors.Is(err, tc.want) || asked != tc.asked {
					t.Errorf("got %v after %d times, want %v after %d", err, asked, tc.want, tc.asked)
				}
			})
		})
	}
}

// The whole way: a table is taken for longer than a migration waits for it.
func TestAMigrationIsNotLostToALongTransaction(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	conn := connect(t, migrations.Broker)
	exec(t, conn, "DELETE FROM public.queengate_routines")
	exec(t, conn, "BEGIN; LOCK TABLE public.queengate_broker_version IN ACCESS EXCLUSIVE MODE")
	done := make(chan error, 1)
	go func() { done <- migrations.Apply(ctx, conn.Config(), migrations.Broker) }()
	await := func(waits bool) {
		for is := !waits; is != waits; {
			if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'public.queengate_broker_version'::regclass)").Scan(&is); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				t.Fatalf("it did not wait: %v", err)
			default:
			}
		}
	}
	await(true)
	await(false) // it gave way
	exec(t, conn, "ROLLBACK")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(ctx, conn.PgConn(), migrations.Broker); err != nil {
		t.Error(err)
	}
}
