package broker

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// Cursors of pages name the last row of a page; callers send them back as they are.

func letterCursor(k store.LetterKey) string {
	return fmt.Sprintf("%d_%s", k.FailedAt.UnixMicro(), k.ID)
}

// parseLetterCursor reads what letterCursor wrote; "" is the zero key.
func parseLetterCursor(s string) (store.LetterKey, error) {
	if s == "" {
		return store.LetterKey{}, nil
	}
	stamp, id, ok := cutCursor(s)
	if !ok {
		return store.LetterKey{}, badCursor()
	}
	return store.LetterKey{FailedAt: stamp, ID: id}, nil
}

// place is where a message stands in the order of browsing: newest first, then by partition, then by offset downwards.
type place struct {
	created   time.Time
	partition uuid.UUID
	offset    int64
}

func (p place) String() string {
	return fmt.Sprintf("%d_%s_%d", p.created.UnixMicro(), p.partition, p.offset)
}

// parsePlace reads what String wrote; "" is the zero place.
func parsePlace(s string) (p place, err error) {
	if s == "" {
		return place{}, nil
	}
	head, tail, ok := lastCut(s)
	if ok {
		p.created, p.partition, ok = cutCursor(head)
	}
	if ok {
		p.offset, err = strconv.ParseInt(tail, 10, 64)
	}
	if !ok || err != nil || p.offset < 0 {
		return place{}, badCursor()
	}
	return p, nil
}

// before reports that p comes first.
func (p place) before(q place) bool {
	if !p.created.Equal(q.created) {
		return p.created.After(q.created)
	}
	if c := bytes.Compare(p.partition[:], q.partition[:]); c != 0 {
		return c > 0
	}
	return p.offset > q.offset
}

func lastCut(s string) (head, tail string, ok bool) {
	i := strings.LastIndexByte(s, '_')
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+1:], true
}

func cutCursor(s string) (time.Time, uuid.UUID, bool) {
	stamp, id, ok := strings.Cut(s, "_")
	micros, err := strconv.ParseInt(stamp, 10, 64)
	uid, err2 := uuid.Parse(id)
	const year9999 = 253402300799 * 1_000_000
	if !ok || err != nil || err2 != nil || len(id) != 36 || micros < 0 || micros > year9999 {
		return time.Time{}, uuid.Nil, false
	}
	return time.UnixMicro(micros).UTC(), uid, true
}

func badCursor() error {
	return wire.Errorf(wire.InvalidRequest, "cursor is none that a page of this list ended with")
}

func appendBool(dst []byte, v bool) []byte { return strconv.AppendBool(dst, v) }
