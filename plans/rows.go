package plans

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rawRows are rows of the catalogue as the database sent them: by the statement that reads them whole, and by the key
// by which the change log names them. The last-known-good file holds them, and a start reads them by the same
// functions as those of the database: a column or a table that is added comes along by itself, a statement that
// changed makes the file one of another version, and what fails closed there fails closed here.
type rawRows map[string]map[string][]byte

// reading is what one look at the catalogue asks for, in order.
type reading []query

// query reads a table of the catalogue: whole, or the rows of some keys.
type query struct {
	sql  string
	key  string
	some any      // the keys, as an argument of the statement; nil: all
	keys []string // the same as text
	scan func(pgx.Rows) error
}

// queue adds the statement to the reading: whole, for the changed ids, or not at all.
func queue[T any](r *reading, ch *changes, sql, key string, ids []T, scan func(pgx.Rows) error) {
	q := query{sql: sql, key: key, scan: scan}
	switch {
	case ch.all:
	case len(ids) > 0:
		q.some = ids
		for _, id := range ids {
			q.keys = append(q.keys, fmt.Sprint(id))
		}
	default:
		return
	}
	*r = append(*r, q)
}

// send adds the query to a batch. The rows that come are scanned and, unless raw is nil, kept there as they are; a key
// that was asked for and has none stands there without.
func (q query) send(b *pgx.Batch, raw rawRows) {
	sql, args := q.sql, []any(nil)
	if q.some != nil {
		sql, args = sql+" WHERE "+q.key+" = ANY ($1)", []any{q.some}
	}
	var kept map[string][]byte
	if raw != nil {
		kept = map[string][]byte{}
		raw[q.sql] = kept
		for _, key := range q.keys {
			kept[key] = nil
		}
	}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		var fields []pgconn.FieldDescription // there are none before the first row, and no asking for them after a failure
		at := -1
		for rows.Next() {
			if err := q.scan(rows); err != nil {
				return err
			}
			if kept == nil {
				continue
			}
			if fields == nil {
				fields = rows.FieldDescriptions()
				at = slices.IndexFunc(fields, func(f pgconn.FieldDescription) bool { return f.Name == q.key })
			}
			if at < 0 {
				return fmt.Errorf("no column %s among the rows", q.key)
			}
			values := rows.RawValues()
			key := keyText(fields[at], values[at])
			kept[key] = appendRow(kept[key], fields, values)
		}
		return rows.Err()
	})
}

// keyText returns a key, which is a text or a UUID, as text. A text has one form only, and so has the text of a UUID.
func keyText(f pgconn.FieldDescription, value []byte) string {
	if f.DataTypeOID == pgtype.UUIDOID && f.Format == pgx.BinaryFormatCode && len(value) == len(uuid.UUID{}) {
		return uuid.UUID(value).String()
	}
	return string(value)
}

// replay scans the rows that were kept of the query.
func (q query) replay(raw rawRows) error {
	kept, ok := raw[q.sql]
	if !ok {
		return errOtherVersion
	}
	row := keptRow{types: pgtype.NewMap()}
	for _, rows := range kept {
		for len(rows) > 0 {
			var err error
			if rows, err = row.read(rows); err != nil {
				return err
			}
			if err := q.scan(&row); err != nil {
				return fmt.Errorf("read kept row: %w", err)
			}
		}
	}
	return nil
}

// grants are the statements whose rows can only allow: a new one takes nothing away from anybody. Of every other one,
// as of revocations, it is taken to.
var grants = map[string]bool{
	sqlTenants: true, sqlCells: true, sqlPlans: true, sqlClusters: true, sqlOperators: true, sqlRoles: true, sqlKeys: true,
}

// apply replaces what was asked for by what was found of it; all says that it was everything. It reports whether
// anything differs, and whether something may have been taken away from somebody.
func (r rawRows) apply(all bool, found rawRows) (differs, takes bool) {
	for sql, rows := range found {
		known := r[sql]
		if known == nil {
			known = make(map[string][]byte, len(rows))
			r[sql] = known
		}
		for key, row := range rows {
			was, had := known[key]
			switch {
			case bytes.Equal(was, row):
			case row == nil:
				differs, takes = true, true
				delete(known, key)
			default:
				differs, takes = true, takes || had || !grants[sql]
				known[key] = row
			}
		}
		if !all {
			continue
		}
		for key := range known {
			if _, still := rows[key]; !still {
				differs, takes = true, true
				delete(known, key)
			}
		}
	}
	return differs, takes
}

// A kept row is the number of its columns and, of each, type, format, and length and bytes of the value; a length of
// zero is NULL and every other one is by one too large.

func appendRow(to []byte, fields []pgconn.FieldDescription, values [][]byte) []byte {
	to = binary.AppendUvarint(to, uint64(len(values)))
	for i, v := range values {
		to = binary.AppendUvarint(to, uint64(fields[i].DataTypeOID))
		to = binary.AppendUvarint(to, uint64(fields[i].Format))
		if v == nil {
			to = binary.AppendUvarint(to, 0)
			continue
		}
		to = binary.AppendUvarint(to, uint64(len(v))+1)
		to = append(to, v...)
	}
	return to
}

// keptRow is a row that was kept, as far as those who scan rows of the database look at one.
type keptRow struct {
	pgx.Rows // none: it has no connection

	types   *pgtype.Map
	columns []column
	plans   []plan
}

// plan is how a column is scanned; to find out takes as long as to do it a few times.
type plan struct {
	pgtype.ScanPlan
	oid    uint32
	format int16
}

type column struct {
	oid    uint32
	format int16
	value  []byte // nil: NULL
}

var errTornRow = errors.New("a kept row is torn")

// read takes the first row of some and returns the rest.
func (k *keptRow) read(rows []byte) (rest []byte, err error) {
	number := func() uint64 {
		n, size := binary.Uvarint(rows)
		if size <= 0 {
			err = errTornRow
			return 0
		}
		rows = rows[size:]
		return n
	}
	k.columns = k.columns[:0]
	for n := number(); n > 0 && err == nil; n-- {
		c := column{oid: uint32(number()), format: int16(number())}
		if size := number(); size > uint64(len(rows))+1 {
			err = errTornRow
		} else if size > 0 {
			c.value, rows = rows[:size-1:size-1], rows[size-1:]
		}
		k.columns = append(k.columns, c)
	}
	return rows, err
}

// Scan implements what is asked of pgx.Rows. All rows of a keptRow are scanned into the same types.
func (k *keptRow) Scan(dest ...any) error {
	if len(dest) != len(k.columns) {
		return errOtherVersion
	}
	if k.plans == nil {
		k.plans = make([]plan, len(dest))
	}
	for i, c := range k.columns {
		p := &k.plans[i]
		if p.ScanPlan == nil || p.oid != c.oid || p.format != c.format {
			*p = plan{k.types.PlanScan(c.oid, c.format, dest[i]), c.oid, c.format}
		}
		if err := p.Scan(c.value, dest[i]); err != nil {
			return err
		}
	}
	return nil
}
