package store

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/queengate/queengate/internal/pg"
)

// hot is a statement that goes past pgx's type map: its parameters are arrays of many values, which pgx would encode
// one by one through reflection, and its rows hold a handful of fixed-width columns.
type hot struct {
	op      string // names the statement on the connection and the operation in errors
	sql     string
	commits bool // not to be cancelled once sent
}

func hotStatement(op, sql string, commits bool) *hot {
	return &hot{op: op, sql: statement(sql), commits: commits}
}

// call collects the parameters of one execution in PostgreSQL's binary formats. It belongs to one goroutine.
type call struct {
	buf    []byte   // all parameters back to back
	ends   []int    // end of each in buf
	values [][]byte // slices of buf, built when buf has stopped moving
}

var calls = sync.Pool{New: func() any { return new(call) }}

// maxKeptCall keeps one huge bundle from being remembered for ever.
const maxKeptCall = 16 << 20

func newCall() *call { return calls.Get().(*call) }

func (c *call) release() {
	if cap(c.buf) > maxKeptCall {
		return
	}
	c.buf, c.ends = c.buf[:0], c.ends[:0]
	calls.Put(c)
}

// end closes the parameter written since the last end.
func (c *call) end() { c.ends = append(c.ends, len(c.buf)) }

func (c *call) bool(v bool) {
	var b byte
	if v {
		b = 1
	}
	c.buf = append(c.buf, b)
	c.end()
}

func (c *call) int8(v int64) {
	c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(v))
	c.end()
}

func (c *call) uuid(v uuid.UUID) {
	c.buf = append(c.buf, v[:]...)
	c.end()
}

// array opens a one-dimensional array of n elements; n elements and an end follow.
func (c *call) array(elementOID uint32, n int) {
	dimensions := uint32(min(n, 1))
	c.buf = binary.BigEndian.AppendUint32(c.buf, dimensions)
	c.buf = binary.BigEndian.AppendUint32(c.buf, 0) // without nulls
	c.buf = binary.BigEndian.AppendUint32(c.buf, elementOID)
	if dimensions == 1 {
		c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(n))
		c.buf = binary.BigEndian.AppendUint32(c.buf, 1) // lower bound
	}
}

func (c *call) element(v []byte) {
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(len(v)))
	c.buf = append(c.buf, v...)
}

// int4s, int8s, uuids and byteas write a whole array parameter whose element i is at(i).

func (c *call) int4s(n int, at func(int) int32) {
	c.array(pgtype.Int4OID, n)
	for i := range n {
		c.buf = binary.BigEndian.AppendUint32(c.buf, 4)
		c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(at(i)))
	}
	c.end()
}

func (c *call) int8s(n int, at func(int) int64) {
	c.array(pgtype.Int8OID, n)
	for i := range n {
		c.buf = binary.BigEndian.AppendUint32(c.buf, 8)
		c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(at(i)))
	}
	c.end()
}

func (c *call) uuids(n int, at func(int) uuid.UUID) {
	c.array(pgtype.UUIDOID, n)
	for i := range n {
		id := at(i)
		c.element(id[:])
	}
	c.end()
}

func (c *call) byteas(n int, at func(int) []byte) {
	c.array(pgtype.ByteaOID, n)
	for i := range n {
		c.element(at(i))
	}
	c.end()
}

// allBinary is the format code of parameters and results; one entry stands for all of them.
var allBinary = []int16{pgtype.BinaryFormatCode}

// run executes h with the parameters of c and gives the columns of each row to each, valid during that call only and
// nil for NULL. The commit comes after the rows: nothing that each saw counts unless run returns nil.
func (s *Store) run(ctx context.Context, h *hot, c *call, each func(row [][]byte)) error {
	conn, err := s.acquire(ctx, h.op)
	if err != nil {
		return err
	}
	defer conn.Release()
	return runOn(ctx, conn.Conn(), h, c, each)
}

// runOn is run on a session that the caller holds.
func runOn(ctx context.Context, conn *pgx.Conn, h *hot, c *call, each func(row [][]byte)) error {
	if h.commits {
		ctx = context.WithoutCancel(ctx)
	}
	if _, err := conn.Prepare(ctx, h.op, h.sql); err != nil {
		return pg.Error(h.op, err)
	}
	c.values = c.values[:0]
	start := 0
	for _, end := range c.ends {
		c.values = append(c.values, c.buf[start:end:end])
		start = end
	}
	err := drain(conn.PgConn().ExecPrepared(ctx, h.op, c.values, allBinary, allBinary), each)
	if h.commits {
		err = pg.Confirmed(conn, err)
	}
	switch pg.State(err) {
	case "0A000", "26000":
		// The routine was replaced under its statement, or a pooler dropped it: a new connection prepares it afresh.
		_ = conn.Close(context.WithoutCancel(ctx)) // it is given up, whatever it says
	}
	return pg.Error(h.op, err)
}

func drain(rows *pgconn.ResultReader, each func(row [][]byte)) error {
	for rows.NextRow() {
		each(rows.Values())
	}
	_, err := rows.Close()
	return err
}

// The columns of a binary row. Their widths are fixed by the statement, so a wrong one is a broken invariant.

func asInt2(b []byte) int16     { return int16(binary.BigEndian.Uint16(b)) }
func asInt4(b []byte) int32     { return int32(binary.BigEndian.Uint32(b)) }
func asInt8(b []byte) int64     { return int64(binary.BigEndian.Uint64(b)) }
func asTime(b []byte) time.Time { return time.UnixMicro(asInt8(b) + epoch).UTC() }

// epoch is where PostgreSQL counts its microseconds from, in Unix microseconds.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
