package migrations

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrOutdated says that a database lacks what this program needs. A newer schema than its own is fine.
var ErrOutdated = errors.New("the schema is older than this program")

// Check returns nil when the database of conn has at least the schema of the set that this program knows, an error that is
// ErrOutdated and says what to do when it has less, and any other error when it cannot tell. Two reads, no lock.
func Check(ctx context.Context, conn *pgconn.PgConn, set Set) error {
	const remedy = "run `queengate migrate` first"
	rows, err := read(ctx, conn, "SELECT max(version_id)::text FROM "+set.table()+" WHERE is_applied")
	var version int64
	switch {
	case state(err) == "42P01":
		return fmt.Errorf("%w: there is none; %s", ErrOutdated, remedy)
	case err == nil && rows[0][0] != "":
		version, err = strconv.ParseInt(rows[0][0], 10, 64)
	}
	if err != nil {
		return fmt.Errorf("see which %s schema there is: %w", set, err)
	}
	if version < set.newest() {
		return fmt.Errorf("%w: it is at migration %d, and %d is needed; %s", ErrOutdated, version, set.newest(), remedy)
	}
	rows, err = read(ctx, conn, "SELECT name, hash FROM public.queengate_routines WHERE name LIKE '"+string(set)+"/%'")
	if err != nil && state(err) != "42P01" {
		return fmt.Errorf("see which %s routines there are: %w", set, err)
	}
	have := map[string]string{}
	for _, row := range rows {
		have[row[0]] = row[1]
	}
	generation, err := generationOf(have[set.generation()])
	if err != nil || generation > generations[set] {
		return err
	}
	if generation < generations[set] {
		return fmt.Errorf("%w: its routines are of generation %d, and %d is needed; %s", ErrOutdated, generation, generations[set], remedy)
	}
	var stale []string
	for _, r := range set.routines() {
		if have[r.name] != r.hash {
			stale = append(stale, r.name)
		}
	}
	if len(stale) > 0 {
		return fmt.Errorf("%w: %s differ; %s", ErrOutdated, strings.Join(stale, ", "), remedy)
	}
	return nil
}

// read returns the rows of a query as text.
func read(ctx context.Context, conn *pgconn.PgConn, sql string) (out [][]string, err error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	for _, row := range results[0].Rows {
		texts := make([]string, len(row))
		for i, v := range row {
			texts[i] = string(v)
		}
		out = append(out, texts)
	}
	return out, nil
}

func state(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}
