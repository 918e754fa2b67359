package store

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// texts and bools write a whole array parameter whose element i is at(i), as the methods of binary.go do. In those
// named nullable an element is NULL where at's second value is false.

func (c *call) texts(n int, at func(int) string) {
	c.array(pgtype.TextOID, n)
	for i := range n {
		v := at(i)
		c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(len(v)))
		c.buf = append(c.buf, v...)
	}
	c.end()
}

func (c *call) bools(n int, at func(int) bool) {
	c.array(pgtype.BoolOID, n)
	for i := range n {
		var b byte
		if at(i) {
			b = 1
		}
		c.buf = append(c.buf, 0, 0, 0, 1, b)
	}
	c.end()
}

// null writes a NULL element into an array opened by nullableArray.
func (c *call) null() { c.buf = append(c.buf, 0xff, 0xff, 0xff, 0xff) }

// nullableArray is array for elements that may be NULL.
func (c *call) nullableArray(elementOID uint32, n int) {
	at := len(c.buf)
	c.array(elementOID, n)
	c.buf[at+7] = 1 // the flag that says so
}

func (c *call) nullableUUIDs(n int, at func(int) (uuid.UUID, bool)) {
	c.nullableArray(pgtype.UUIDOID, n)
	for i := range n {
		if v, ok := at(i); ok {
			c.element(v[:])
		} else {
			c.null()
		}
	}
	c.end()
}

func (c *call) nullableInt8s(n int, at func(int) (int64, bool)) {
	c.nullableArray(pgtype.Int8OID, n)
	for i := range n {
		v, ok := at(i)
		if !ok {
			c.null()
			continue
		}
		c.buf = binary.BigEndian.AppendUint32(c.buf, 8)
		c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(v))
	}
	c.end()
}

func (c *call) nullableInt4s(n int, at func(int) (int32, bool)) {
	c.nullableArray(pgtype.Int4OID, n)
	for i := range n {
		v, ok := at(i)
		if !ok {
			c.null()
			continue
		}
		c.buf = binary.BigEndian.AppendUint32(c.buf, 4)
		c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(v))
	}
	c.end()
}

func (c *call) nullableBytes(elementOID uint32, n int, at func(int) ([]byte, bool)) {
	c.nullableArray(elementOID, n)
	for i := range n {
		if v, ok := at(i); ok {
			c.element(v)
		} else {
			c.null()
		}
	}
	c.end()
}

func (c *call) nullableTimes(n int, at func(int) (time.Time, bool)) {
	c.nullableArray(pgtype.TimestamptzOID, n)
	for i := range n {
		v, ok := at(i)
		if !ok {
			c.null()
			continue
		}
		c.buf = binary.BigEndian.AppendUint32(c.buf, 8)
		c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(v.UnixMicro()-epoch))
	}
	c.end()
}

// More columns of a binary row, beside those of binary.go.

func asBool(b []byte) bool { return b[0] != 0 }

// asTimeOrZero reads a NULL as the zero time.
func asTimeOrZero(b []byte) time.Time {
	if b == nil {
		return time.Time{}
	}
	return asTime(b)
}

// asInt8s reads a one-dimensional bigint[] without NULLs: dimensions, flags, element type, length and lower bound, then
// each element behind its size. NULL and the empty array are nil.
func asInt8s(b []byte) []int64 {
	const head, element = 20, 12
	if len(b) < head {
		return nil
	}
	out := make([]int64, asInt4(b[12:]))
	for i := range out {
		out[i] = asInt8(b[head+i*element+4:])
	}
	return out
}
