package store

import (
	"context"
	"time"

	"github.com/queengate/queengate/internal/pg"
)

// SidecarRow is one row of the hash sidecar.
type SidecarRow struct {
	Base, End int64
	CreatedAt time.Time
	Hashes    []byte // 16 × (End-Base+1); valid during the call only
}

// skewSlack widens the window of a hydration: the window of a later probe begins earlier than the one read here when
// the database's clock steps back in between.
const skewSlack = 5 * time.Second

// No lock. Index: log_txns_pkey from the row that covers the bound, else from the first. One snapshot serves the
// partition row and the sidecar rows, and a push commits both together: every row up to last_offset is among them.
var sidecar = hotStatement("sidecar", `SELECT p.last_offset, t.base_offset, t.end_offset, t.created_at, t.hashes
FROM queen.log_partitions p
LEFT JOIN queen.log_txns t ON t.partition_id = p.id
  AND t.end_offset > $2
  AND t.created_at >= now() - $3::bigint * interval '1 microsecond'
  AND t.base_offset >= coalesce((
    SELECT c.base_offset FROM queen.log_txns c
    WHERE c.partition_id = $1 AND c.base_offset <= $2 ORDER BY c.base_offset DESC LIMIT 1), 0)
WHERE p.id = $1
ORDER BY t.base_offset`, false)

// Sidecar reads the hashes of a partition within window and with end offset above after (-1: all), oldest first,
// without a lock. It returns the partition's last offset as of the same snapshot: every row up to it that the window
// holds was given to each. A push may then offer it as Verified, since rows are immutable and only purged.
// A partition that does not exist has no rows and ends at -1. The read obeys ctx; on an error what each saw is a
// prefix and vouches for nothing.
func (s *Store) Sidecar(ctx context.Context, partition int64, window time.Duration, after int64, each func(SidecarRow)) (upTo Watermark, err error) {
	upTo.Offset = -1
	conn, err := s.acquire(ctx, sidecar.op)
	if err != nil {
		return upTo, err
	}
	defer conn.Release()
	c := newCall()
	defer c.release()
	c.int8(partition)
	c.int8(after)
	c.int8((window + skewSlack).Microseconds())
	last := int64(-1)
	err = runOn(ctx, conn.Conn(), sidecar, c, func(row [][]byte) {
		last = asInt8(row[0])
		if row[1] != nil {
			each(SidecarRow{Base: asInt8(row[1]), End: asInt8(row[2]), CreatedAt: asTime(row[3]), Hashes: row[4]})
		}
	})
	if err != nil {
		return upTo, err
	}
	return Watermark{last, pg.LifeOf(conn.Conn())}, nil
}
