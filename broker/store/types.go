package store

import (
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// Queue is a queue row: identity and options are the same row.
type Queue struct {
	ID      int64
	UID     uuid.UUID
	Tenant  uuid.UUID
	Name    string
	Options wire.QueueOptions
	Created time.Time
	Life    pg.Life // in which ID is the queue's
}

// Partition is a resolved partition with the facts of its queue that a push or pop needs. ID 0 means it does not exist.
type Partition struct {
	ID          int64
	UID         uuid.UUID
	QueueID     int64
	Tenant      uuid.UUID
	Queue       string
	Name        string
	DedupWindow time.Duration // 0: no probe
	Encrypted   bool          // only sealed payloads may be stored
	Life        pg.Life       // in which ID is the partition's: a failover may give the number to another one
}

// Pair names a partition of a tenant.
type Pair struct{ Queue, Partition string }

// Caps is what the plan of a tenant says of what it creates. Counts of nil mean unlimited; MaxPartitions is per queue and
// does not count Default.
type Caps struct {
	MaxQueues, MaxPartitions *int64
	Unbounded                Unbounded
}

// Unbounded is what becomes of a queue without retention (retentionEnabled with a retentionSeconds above 0) when it is
// made or configured. The zero value leaves it alone.
type Unbounded struct {
	Ceiling int64 // seconds, 1..2147483647: what such a queue is given; 0: nothing
	Refuse  bool  // it is refused instead, with the ceiling in the error
}

// Hash is the identity of a transaction id: SHA-256 truncated to 128 bits.
type Hash = [16]byte

// Segment is one encoded segment offered to PushBundle. A partition may appear only once in a bundle.
type Segment struct {
	PartitionID int64
	Known       pg.Life   // the life in which PartitionID was looked up; in another one the partition is missing; 0: just now
	Tenant      uuid.UUID // whose retained bytes grow
	Count       int
	RawBytes    int64         // payload bytes as sent
	Verified    Watermark     // the cache vouches for every sidecar row up to it; the zero value: probe the whole window
	DedupWindow time.Duration // 0: no probe
	Blob        []byte        // package segment
	Hashes      []byte        // 16 × Count
	Sealed      bool          // every payload in it is encrypted
}

// Life is a life of the database, as package pg numbers them.
type Life = pg.Life

// Watermark says that its owner knows every sidecar row of a partition up to Offset, as the database was in that life. A
// statement in a session of another life takes it for nothing: after a failover other rows may stand at those offsets,
// and a probe that skipped them would let a duplicate in. The zero value knows nothing.
type Watermark struct {
	Offset int64 // -1: nothing
	Life   pg.Life
}

// in returns the offset that counts in a session of that life.
func (w Watermark) in(life pg.Life) int64 {
	if life == 0 || w.Life != life {
		return -1
	}
	return w.Offset
}

// Below returns w, or less of it when something is known to stand at offset.
func (w Watermark) Below(offset int64) Watermark {
	w.Offset = min(w.Offset, offset-1)
	return w
}

// PushStatus is what PushBundle did with one segment.
type PushStatus uint8

const (
	PushStored    PushStatus = iota // committed
	PushDuplicate                   // nothing written: Dups names the frames seen before
	PushBusy                        // nothing written: another session holds the partition row
	PushMissing                     // nothing written: the partition does not exist (deleted); provision again
	PushPlain                       // nothing written: the queue is encrypted and the segment is not Sealed; look the partition up again
)

// Dup is a frame that was seen before.
type Dup struct {
	Frame     int // index in the offered segment
	Offset    int64
	CreatedAt time.Time // of the original
}

// PushVerdict answers one segment of a bundle, in input order.
type PushVerdict struct {
	Status     PushStatus
	Base       int64     // first offset (PushStored)
	CreatedAt  time.Time // stamped under the partition lock, never before its predecessor
	LastOffset int64     // of the partition as seen under the lock, after this push (PushStored, PushDuplicate)
	Life       pg.Life   // of the database, in which all this is so
	Dups       []Dup     // PushDuplicate: in frame order, each with its lowest original offset
}

// Seed says where a group starts on a partition it has no cursor for yet (spec/broker-engine.md 3.7).
type Seed struct {
	Mode       wire.SeedMode
	From       time.Time // for SeedTimestamp
	Conflation bool      // the group is given the newest message of a partition only
}

// Candidate verdicts of a claim.
type ClaimStatus uint8

const (
	ClaimTook         ClaimStatus = iota // messages are leased (or committed under autoAck)
	ClaimEmpty                           // no foreign lease and nothing deliverable; see VisibleAt
	ClaimLeased                          // a live foreign lease until Until, or its row was locked while data is pending
	ClaimSkipped                         // the pop had what it wanted before this candidate was looked at
	ClaimMissing                         // the partition does not exist any more
	ClaimUnregistered                    // the group has neither a cursor there nor a registration: Register, and claim again
	ClaimStale                           // nothing done: the queue was looked up in another life of the database; look it up again
)

// Claim is one pop's wish: try Candidates in order until Budget messages or MaxPartitions partitions are taken.
type Claim struct {
	Candidates    []int64 // partition ids, all of one queue, or with Gates of any
	Of            Origin  // that queue
	Group         string
	Worker        uuid.UUID     // becomes the lease id
	Lease         time.Duration // > 0
	Delay         time.Duration // delayedProcessing: only messages at least this old
	Window        time.Duration // windowBuffer: nothing before the oldest message that waits is so old
	WindowFull    int           // but when so many messages wait the window is over; 0: it never is before its time
	Gates         []Gate        // by candidate, instead of Of, Lease, Delay and Window; nil: those hold for all
	Budget        int           // messages, at least 1
	Bytes         int64         // of payload; the first message is delivered whatever its size; 0: no bound
	MaxPartitions int           // 0: no cap
	AutoAck       bool          // a partition that may hold encrypted messages is leased all the same: see Claimed.Expires
	Conflate      bool          // lease all that is visible, deliver the newest message of it; not with AutoAck
}

// Gate is what the queue of one candidate asks for.
type Gate struct {
	Of                   Origin
	Lease, Delay, Window time.Duration
}

// Origin is the queue that a partition is believed to be of. What believes it hears of partitions from others, who may
// be behind a failover, so a partition of any other queue is missing. The zero value believes nothing and is not checked.
type Origin struct {
	Queue int64   // below 0: there is none, and all its partitions are missing
	Life  pg.Life // in which it was looked up
}

// bytes is Bytes as the routines take it: without a bound, more than anything can weigh.
func (c *Claim) bytes() int64 {
	if c.Bytes <= 0 {
		return math.MaxInt64
	}
	return c.Bytes
}

func (c *Claim) gate(candidate int) Gate {
	if c.Gates != nil {
		return c.Gates[candidate]
	}
	return Gate{c.Of, c.Lease, c.Delay, c.Window}
}

// StoredSegment is a segment as delivered by a claim.
type StoredSegment struct {
	Base, End int64 // inclusive
	CreatedAt time.Time
	Blob      []byte
	Life      pg.Life // of the database it was read from: in another one its place may be another segment's
}

// Claimed is the verdict on one candidate, in the order of Claim.Candidates.
type Claimed struct {
	PartitionID int64
	Status      ClaimStatus
	UID         uuid.UUID
	Name        string
	After       int64 // ClaimTook: span (After, Through] is delivered; ClaimEmpty: the cursor
	Through     int64
	Skipped     int64           // positions before After that are leased with it and stay untold: a conflating claim
	Segments    []StoredSegment // cover the span; the first and last may reach beyond it
	Attempt     int             // deliveries of a batch that starts here, from 1
	Expires     time.Time       // of our lease, database clock; zero under AutoAck when the cursor has moved
	Until       time.Time       // ClaimLeased: when the foreign lease ends
	VisibleAt   time.Time       // ClaimEmpty: when delayed messages become visible; zero when none are pending
	LastOffset  int64           // ClaimTook, ClaimEmpty: the partition's last offset: Through == LastOffset means drained
}

// AckItem is one acknowledgement of a group.
type AckItem struct {
	Hash   Hash
	Status wire.AckStatus
	Reason string
	// Offset is the message's offset when the broker knows it from the lease it granted, else -1: the routine then
	// resolves Hash inside the leased span.
	Offset int64
	// TransactionID is the id as sent; a dead letter whose segment retention removed is filed under it. Optional.
	TransactionID string
}

// AckGroup is all acknowledgements of one request for one (partition, lease): evaluated together, one decision.
type AckGroup struct {
	Tenant    uuid.UUID
	Partition uuid.UUID
	Group     string
	Lease     string // as sent; "" skips the ownership check
	Items     []AckItem
}

// AckItemVerdict answers one item of a group, in input order.
type AckItemVerdict struct {
	Success bool
	Error   string
	DLQ     bool
	Noop    bool
}

// AckVerdict answers one group.
type AckVerdict struct {
	Items         []AckItemVerdict
	Err           error // why the group is undecided, nil when it is not; its Outcome says whether it may be decided all the same
	LeaseReleased bool  // this call ended a live lease
	PartitionID   int64 // 0 when unknown
	QueueID       int64
	Queue         string
	Committed     int64 // cursor after the call; -1 also when the group has none
	LastOffset    int64 // of the partition: Committed < LastOffset means more is pending
	Advanced      int64 // messages crossed
	Conflated     int64 // of them, what a conflated lease had left out
}

// Pending is a partition with messages behind a group's cursor.
type Pending struct {
	PartitionID int64
	Queue       string // PendingIn only
	Group       string
	LastOffset  int64
	Committed   int64     // -1 when the group has no cursor yet
	LeasedUntil time.Time // zero when free
	VisibleAt   time.Time // when its first pending message may be delivered; zero: now
}

// Change is one line of the change feed: a partition written lately.
type Change struct {
	PartitionID int64
	QueueID     int64
	Tenant      uuid.UUID
	Queue       string
	LastOffset  int64
}

// Switches are the operator's switches as they stand in the database: true stops the operation.
type Switches struct{ Push, Pop bool }

// CursorMove says that an operator moved or removed cursors: what rings believe of them is out of date.
type CursorMove struct {
	ID     int64 // grows, but may be seen out of order
	Tenant uuid.UUID
	Queue  string
	Group  string // "": every group of the queue, which was deleted or cleared
}

// Shared is what all brokers of a cell obey and learn from the change feed.
type Shared struct {
	Life          pg.Life // of the database that says all this
	Timeline      uint32  // and its timeline
	ConfigVersion int64
	Switches
	Moves []CursorMove // of the last minute, or of a wider window
}

// Usage is what a tenant occupies.
type Usage struct {
	Tenant        uuid.UUID
	RetainedBytes int64 // raw payload bytes as sent
	Queues        int64
	ComputedAt    time.Time
}
