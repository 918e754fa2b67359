package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/wire"
)

// readers are the methods of Store that take no lock anybody could wait for. Every other one is a writer and must be
// among those of the hunt.
var readers = strings.Fields(`
	Blobs Brokers BrowseLanes CellCounts CellHistory CellTotals Changed Changes CountLetters DeadLetterCounts DeadLetters
	DeadOffsets FetchRanges GroupLanes Groups LaggingLanes Lane Leases Letter LetterAt LetterSignatures Letters LettersByID
	Lingering Liveness Lookup LookupQueue Message Names Namespaces Overview Parked PartitionGrowth Partitions Pending PendingIn
	PendingOf Pool Postgres ProcessHistory QueueActivity QueueDepth QueueHistory QueuePartitions Queues Redrive RedrivePage Redrives
	RetentionFirm RetentionHistory RetentionSoft SafeTime ScopeQueues SegmentHeads Segments Sidecar SidecarDue State
	Switches Tasks TenantHistory TraceNames TracesByName TracesOfMessage Usage Workload`)

// hunter is one session of the hunt with a random order of its own for whatever it hands in.
type hunter struct {
	*world
	*rand.Rand
	ctx context.Context
	db  *Store
}

const huntPartitions = 4

// partitions provisions and returns some of the partitions in any order.
func (h *hunter) partitions() []Partition {
	var pairs []Pair
	for _, i := range h.Perm(huntPartitions)[:1+h.IntN(huntPartitions)] {
		pairs = append(pairs, Pair{"sales.q", fmt.Sprint("p", i)})
	}
	ps, err := h.db.Provision(h.ctx, h.tenant, pairs, Caps{})
	if e := wire.AsError(err); e != nil && e.Code != wire.NotFound { // it is being deleted over and over
		h.t.Error(err)
	}
	return ps
}

func (h *hunter) name() string  { return fmt.Sprint("p", h.IntN(huntPartitions)) }
func (h *hunter) group() string { return fmt.Sprint("g", h.IntN(2)) }

// segments offers a message to each of some partitions, now and then one that is known.
func (h *hunter) segments() (segs []Segment) {
	for _, p := range h.partitions() {
		segs = append(segs, h.segmentOf(lane{p.ID, p.UID}, fmt.Sprint("m", h.IntN(500))))
	}
	return segs
}

func (h *hunter) claims() (cs []Claim) {
	group := h.group()
	for _, p := range h.partitions() {
		cs = append(cs, Claim{
			Candidates: []int64{p.ID}, Of: Origin{p.QueueID, p.Life}, Group: group, Worker: uuid.Must(uuid.NewV7()), Lease: time.Second,
			Budget: 1 + h.IntN(5), AutoAck: h.IntN(4) == 0, Conflate: false,
		})
	}
	return cs
}

// batches leases something and returns what is to be acknowledged of it, with its leases.
func (h *hunter) batches() (acks []AckGroup, leases []string, err error) {
	cs := h.claims()
	for i := range cs {
		cs[i].AutoAck = false
	}
	got, err := h.db.ClaimBundle(h.ctx, cs)
	if err != nil {
		return nil, nil, err
	}
	for i := range got {
		if v := got[i][0]; v.Status == ClaimTook {
			lease := cs[i].Worker.String()
			acks = append(acks, AckGroup{
				Tenant: h.tenant, Partition: v.UID, Group: cs[i].Group, Lease: lease,
				Items: []AckItem{{Status: wire.AckStatus(h.IntN(4)), Offset: v.Through}},
			})
			leases = append(leases, lease)
		}
	}
	return acks, leases, nil
}

func (h *hunter) letters() ([]Letter, error) {
	page, _, err := h.db.Letters(h.ctx, h.tenant, LetterFilter{}, LetterKey{}, 5, 0, 1<<20)
	return page, err
}

// redrive is one that runs, if any, claimed by this session; others may have it too.
func (h *hunter) redrive(f func(*Redrive) error) error {
	r, err := h.db.ClaimRedrive(h.ctx, "hunter")
	if err != nil || r == nil {
		return err
	}
	return f(r)
}

func (h *hunter) move(letters []Letter, redrive *Redrive) error {
	ps := h.partitions()
	if len(letters) == 0 || len(ps) == 0 {
		return nil
	}
	names := make([]string, len(letters))
	m := &Move{Tenant: h.tenant, Partition: ps[0], Redrive: redrive}
	for i, l := range letters {
		names[i] = LetterPrefix + l.ID.String()
		m.Letters = append(m.Letters, l.ID)
	}
	s := h.segmentOf(lane{ps[0].ID, ps[0].UID}, names...)
	m.RawBytes, m.Blob, m.Hashes = s.RawBytes, s.Blob, s.Hashes
	_, err := h.db.MoveLetters(h.ctx, m)
	return err
}

// fenced allows for a claim on a task that another session has taken over.
func fenced(err error) error {
	if errors.Is(err, ErrFenced) {
		return nil
	}
	return err
}

// only drops a result that the hunt does not look at.
func only[T any](_ T, err error) error { return err }

func (h *hunter) lease(task string) (TaskLease, bool, error) {
	h.exec("UPDATE queen.maintenance_leases SET next_due_at = clock_timestamp() WHERE task = $1", task)
	held, err := h.db.ClaimTasks(h.ctx, uuid.NewString(), time.Minute, []Task{{task, time.Second}}, time.Millisecond)
	if err != nil || len(held) == 0 {
		return TaskLease{}, false, err
	}
	return held[0], true, nil
}

// under does something under a claim on a task and gives it back.
func (h *hunter) under(task string, f func(TaskLease) error) error {
	l, ok, err := h.lease(task)
	if err != nil || !ok {
		return err
	}
	if err := fenced(f(l)); err != nil {
		return err
	}
	return h.db.ReleaseTask(h.ctx, l, 0, nil, nil)
}

// writers are all methods of Store that write, each as a caller uses it.
var writers = map[string]func(h *hunter) error{
	"AckBundle": func(h *hunter) error {
		acks, _, err := h.batches()
		if err != nil {
			return err
		}
		return only(h.db.AckBundle(h.ctx, acks))
	},
	"AddTrace": func(h *hunter) error {
		for _, p := range h.partitions() {
			err := h.db.AddTrace(h.ctx, h.tenant, &Trace{ID: uuid.New(), Partition: p.UID, TransactionID: "m", Data: []byte("1"), Names: []string{h.name(), "all"}})
			if e := wire.AsError(err); e != nil && e.Code != wire.NotFound {
				return err
			}
		}
		return nil
	},
	"CancelRedrive": func(h *hunter) error {
		return h.redrive(func(r *Redrive) error { return only(h.db.CancelRedrive(h.ctx, h.tenant, r.ID)) })
	},
	"ClaimBundle":  func(h *hunter) error { return only(h.db.ClaimBundle(h.ctx, h.claims())) },
	"ClaimRedrive": func(h *hunter) error { return h.redrive(func(*Redrive) error { return nil }) },
	"ClaimTasks": func(h *hunter) error {
		_, _, err := h.lease(TaskSidecar)
		return err
	},
	"ClearQueue": func(h *hunter) error { return only(h.db.ClearQueue(h.ctx, h.tenant, "sales.q", h.name())) },
	"Configure": func(h *hunter) error {
		body := fmt.Sprintf(`{"queue":"sales.q","mode":"merge","options":{"retentionEnabled":true,"completedRetentionSeconds":%d,"maxWaitTimeSeconds":2}}`, 1+h.IntN(2))
		return only(h.db.Configure(h.ctx, h.tenant, configure(h.t, body), wire.ConfigureMerge, Caps{}))
	},
	"DeadLetterHead": func(h *hunter) error {
		for _, p := range h.partitions() {
			l, err := h.db.Lane(h.ctx, h.tenant, p.UID)
			if err != nil || l == nil {
				return err
			}
			m, err := h.db.Message(h.ctx, l, fmt.Sprint("m", h.IntN(500)))
			if err != nil || m == nil {
				return err
			}
			if _, err := h.db.DeadLetterHead(h.ctx, h.tenant, m, h.group(), "by hand"); err != nil {
				return err
			}
		}
		return nil
	},
	"DeleteGroup": func(h *hunter) error {
		return only(h.db.DeleteGroup(h.ctx, h.tenant, h.group(), "", h.IntN(3) > 0))
	},
	"DeleteLettersAt": func(h *hunter) error {
		ls, err := h.letters()
		for _, l := range ls {
			err = errors.Join(err, only(h.db.DeleteLettersAt(h.ctx, h.tenant, l.PartitionUID, l.TransactionID, "")))
		}
		return err
	},
	"DeletePartitions": func(h *hunter) error {
		var ids []int64
		for _, p := range h.partitions() {
			ids = append(ids, p.ID)
		}
		return only(h.db.DeletePartitions(h.ctx, h.tenant, ids[:len(ids)/2]))
	},
	"DeleteQueue": func(h *hunter) error {
		if h.IntN(4) > 0 {
			return nil
		}
		_, _, err := h.db.DeleteQueue(h.ctx, h.tenant, "sales.q")
		return err
	},
	"Extend": func(h *hunter) error {
		_, leases, err := h.batches()
		for _, l := range leases {
			_, _, e := h.db.Extend(h.ctx, h.tenant, l, 1)
			err = errors.Join(err, e)
		}
		return err
	},
	"ExtendKnown": func(h *hunter) error {
		var ids []int64
		for _, p := range h.partitions() {
			ids = append(ids, p.ID)
		}
		_, _, err := h.db.ExtendKnown(h.ctx, h.tenant, uuid.NewString(), 1, ids)
		return err
	},
	"FinishRedrive": func(h *hunter) error {
		return h.redrive(func(r *Redrive) error { return h.db.FinishRedrive(h.ctx, r, RedriveDone, "") })
	},
	"FoldRetentionHistory": func(h *hunter) error {
		return h.under(TaskHistory, func(l TaskLease) error {
			return only(h.db.FoldRetentionHistory(h.ctx, l, -time.Hour, time.Hour, 10))
		})
	},
	"FoldUsage": func(h *hunter) error { return only(h.db.FoldUsage(h.ctx)) },
	"MoveLetters": func(h *hunter) error {
		ls, err := h.letters()
		if err != nil {
			return err
		}
		h.Shuffle(len(ls), func(i, j int) { ls[i], ls[j] = ls[j], ls[i] })
		if err := h.move(ls[:min(1, len(ls))], nil); err != nil {
			return err
		}
		return h.redrive(func(r *Redrive) error { return h.move(ls, r) })
	},
	"Provision":    func(h *hunter) error { h.partitions(); return nil },
	"PurgeHistory": func(h *hunter) error { return only(h.db.PurgeHistory(h.ctx, 0)) },
	"PurgeLetters": func(h *hunter) error {
		return only(h.db.PurgeLetters(h.ctx, h.tenant, LetterFilter{Queue: "sales.q"}, 3))
	},
	"PurgeTraces": func(h *hunter) error { return only(h.db.PurgeTraces(h.ctx, 0)) },
	"PurgeWrites": func(h *hunter) error {
		return h.under(TaskWrites, func(l TaskLease) error { return only(h.db.PurgeWrites(h.ctx, l, 10)) })
	},
	"PushBundle": func(h *hunter) error { return only(h.db.PushBundle(h.ctx, h.segments())) },
	"PushBundleWait": func(h *hunter) error {
		vs, err := h.db.PushBundleWait(h.ctx, h.segments())
		for _, v := range vs {
			if v.Status == PushBusy {
				return errors.New("a wait for partition rows ran out")
			}
		}
		return err
	},
	"ReclaimPartitions": func(h *hunter) error {
		return h.under(TaskPartitions, func(l TaskLease) error { return only(h.db.ReclaimPartitions(h.ctx, l, time.Millisecond, 10)) })
	},
	"SeedRegistered": func(h *hunter) error {
		h.exec("UPDATE queen.group_registrations SET seeded_to = '' WHERE consumer_group = $1", h.group())
		return h.under(TaskCursors, func(l TaskLease) error { return only(h.db.SeedRegistered(h.ctx, l, 2)) })
	},
	"Register": func(h *hunter) error {
		return only(h.db.Register(h.ctx, h.tenant, h.group(), "sales.q", Seed{Mode: wire.SeedAll}))
	},
	"RegisterScope": func(h *hunter) error {
		return only(h.db.RegisterScope(h.ctx, Scope{Tenant: h.tenant, Namespace: "sales"}, h.group(), Seed{Mode: wire.SeedAll}))
	},
	"ReleaseRedrive": func(h *hunter) error {
		return h.redrive(func(r *Redrive) error { return h.db.ReleaseRedrive(h.ctx, r) })
	},
	"ReleaseTask": func(h *hunter) error { return h.under(TaskRetention, func(TaskLease) error { return nil }) },
	"RenewRedrive": func(h *hunter) error {
		return h.redrive(func(r *Redrive) error { return only(h.db.RenewRedrive(h.ctx, r)) })
	},
	"RenewTask": func(h *hunter) error {
		return h.under(TaskRetention, func(l TaskLease) error { return h.db.RenewTask(h.ctx, l, time.Minute) })
	},
	"Seek": func(h *hunter) error {
		to, partition := wire.Seek{ToEnd: true}, ""
		if h.IntN(2) == 0 {
			to = wire.Seek{At: time.Now().Add(-time.Hour)}
		}
		if h.IntN(2) == 0 {
			partition = h.name()
		}
		return only(h.db.Seek(h.ctx, h.tenant, h.group(), "sales.q", partition, to))
	},
	"SetState":  func(h *hunter) error { return h.db.SetState(h.ctx, "hunt", 1) },
	"SetSwitch": func(h *hunter) error { return h.db.SetSwitch(h.ctx, StateMaintenance, false) },
	"SetSubscription": func(h *hunter) error {
		return only(h.db.SetSubscription(h.ctx, h.tenant, h.group(), time.Now()))
	},
	"SettleRedrive": func(h *hunter) error {
		return h.redrive(func(r *Redrive) error {
			return only(h.db.SettleRedrive(h.ctx, r, LetterKey{time.Now(), uuid.New()}, 0))
		})
	},
	"StartRedrive": func(h *hunter) error {
		_, err := h.db.StartRedrive(h.ctx, &Redrive{Tenant: h.tenant, Filter: LetterFilter{Queue: "sales.q"}, Rate: 1})
		if e := wire.AsError(err); e != nil && e.Code == wire.RateLimited {
			return nil
		}
		return err
	},
	"SweepDropped": func(h *hunter) error { return only(h.db.SweepDropped(h.ctx)) },
	"SweepTrimmed": func(h *hunter) error {
		return h.under(TaskRetention, func(l TaskLease) error { return only(h.db.SweepTrimmed(h.ctx, l, 10)) })
	},
	"Transact": func(h *hunter) error {
		acks, leases, err := h.batches()
		if err != nil {
			return err
		}
		return only(h.db.Transact(h.ctx, &Transaction{Tenant: h.tenant, Pushes: h.segments(), Acks: acks, Fenced: leases != nil, Leases: leases}))
	},
	"Trim": func(h *hunter) error {
		return h.under(TaskRetention, func(l TaskLease) error {
			var ids []int64
			for _, p := range h.partitions() {
				ids = append(ids, p.ID)
			}
			if len(ids) == 0 {
				return nil
			}
			h.exec("UPDATE queen.log_segments SET created_at = created_at - interval '1 minute' WHERE partition_id = $1", ids[0])
			if _, err := h.db.Trim(h.ctx, l, ids[:1], 10, true); err != nil {
				return err
			}
			return only(h.db.Trim(h.ctx, l, ids, 10, false))
		})
	},
	"CloseTenant": func(h *hunter) error { return h.db.CloseTenant(h.ctx, uuid.New()) },
	"WipeTenant": func(h *hunter) error {
		if h.IntN(4) > 0 {
			return nil
		}
		return only(h.db.WipeTenant(h.ctx, h.tenant))
	},
	"WriteMinute": func(h *hunter) error {
		return h.db.WriteMinute(h.ctx, Broker{ID: uuid.New(), Hostname: "h", Started: time.Now()},
			&Minute{Bucket: time.Now().Truncate(time.Minute), Queues: []QueueMinute{{Tenant: h.tenant, Queue: "sales.q"}}})
	},
}

// Every method belongs to one of the two lists, so that a new one cannot be left out of the hunt.
func TestEveryMethodReadsOrIsHunted(t *testing.T) {
	t.Parallel()
	known := map[string]string{}
	for _, name := range readers {
		known[name] = "reader"
	}
	for name := range writers {
		if known[name] != "" {
			t.Errorf("%s is a reader and a writer", name)
		}
		known[name] = "writer"
	}
	for m := range reflect.TypeFor[*Store]().Methods() {
		if known[m.Name] == "" {
			t.Errorf("Store.%s: does it lock anything? Put it among the readers or the writers", m.Name)
		}
		delete(known, m.Name)
	}
	for name := range known {
		t.Errorf("there is no Store.%s", name)
	}
}

// Everything that writes, at the same time, on four partitions of one tenant, in any order of what is handed in: nobody
// waits in a circle and nobody waits in vain, which is what the lock order of the schema promises. The bound on waits is
// longer than any honest wait, and the server finds a circle after a second.
func TestNobodyWaitsInACircle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := w.pool.Config().Copy()
	cfg.MaxConns = 24
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "25s"
	db := New(openPool(t, cfg))
	const rounds = 12
	var all sync.WaitGroup
	var mu sync.Mutex // guards failures
	failures := map[string]error{}
	seed := uint64(0)
	for name, write := range writers {
		for range 2 {
			seed++
			h := &hunter{world: w, Rand: rand.New(rand.NewPCG(7, seed)), ctx: w.ctx, db: db}
			all.Go(func() {
				for range rounds {
					if err := write(h); err != nil {
						mu.Lock()
						defer mu.Unlock()
						failures[name] = err
						return
					}
				}
			})
		}
	}
	all.Wait()
	for name, err := range failures {
		switch pg.State(err) {
		case "40P01", lockNotAvailable:
			t.Errorf("%s waited for ever: %v", name, err)
		default:
			t.Errorf("%s: %v", name, err)
		}
	}
	var deadlocks int
	w.scan("SELECT pg_stat_clear_snapshot()::text, deadlocks FROM pg_stat_database WHERE datname = current_database()", nil, new(string), &deadlocks)
	if deadlocks > 0 {
		t.Errorf("%d deadlocks", deadlocks)
	}
	// What the crowd left is what it should be.
	var wrong int
	if w.scan(inexact, nil, &wrong); wrong > 0 {
		t.Errorf("%d partitions have counters that are not those of their log", wrong)
	}
}

// inexact counts partitions whose counters or watermarks are not those of their log, whose offsets have a hole, and whose
// cursors stand beyond the end.
const inexact = `
SELECT count(*) FROM queen.log_partitions p
 CROSS JOIN LATERAL (
    SELECT count(*) AS n, coalesce(sum(s.raw_bytes), 0) AS bytes, coalesce(min(s.base_offset), p.last_offset + 1) AS first,
           coalesce(sum(s.end_offset - s.base_offset + 1), 0) AS messages, coalesce(max(s.end_offset), p.last_offset) AS last
      FROM queen.log_segments s WHERE s.partition_id = p.id AND s.base_offset >= p.log_start) s
 WHERE (p.segments, p.retained_bytes, p.log_start, p.last_offset - p.log_start + 1, p.last_offset)
       IS DISTINCT FROM (s.n, s.bytes::bigint, s.first, s.messages::bigint, s.last)
    OR EXISTS (SELECT FROM queen.log_consumers k WHERE k.partition_id = p.id
                  AND (k.committed > p.last_offset OR k.batch_end > p.last_offset))`
