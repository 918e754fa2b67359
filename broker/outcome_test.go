package broker

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/fuse"
	"github.com/queengate/queengate/broker/segment"
	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/internal/pgtest"
	"github.com/queengate/queengate/migrations"
	"github.com/queengate/queengate/wire"
)

// lossy is a store that loses what the database says of acks of one partition, in one of two ways.
type lossy struct {
	*store.Store
	lost    uuid.UUID
	decided bool // the ack was carried out, and nobody knows
}

func (f *lossy) AckBundle(ctx context.Context, groups []store.AckGroup) ([]store.AckVerdict, error) {
	verdicts, err := f.Store.AckBundle(ctx, groups)
	if err != nil {
		return nil, err
	}
	for i := range verdicts {
		if groups[i].Partition != f.lost {
			continue
		}
		if f.decided {
			e := wire.Wrap(wire.DatabaseUnavailable, errors.New("the answer was lost"))
			e.Outcome = wire.OutcomeUnknown
			verdicts[i].Err = e
		}
		for k := range verdicts[i].Items {
			verdicts[i].Items[k] = store.AckItemVerdict{Error: store.AckUndecided}
		}
	}
	return verdicts, nil
}

// TestAnUndecidedAckSaysWhetherItMayHaveBeenDone: in an answer that decides others of the same request.
func TestAnUndecidedAckSaysWhetherItMayHaveBeenDone(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t, migrations.Broker)
	for outcome, decided := range map[string]bool{"unknown": true, "none": false} {
		db := &lossy{Store: store.New(pool), decided: decided}
		w := serveFrom(t, pool, db, nil)
		queue := "q-" + outcome
		w.push(`{"items":[{"queue":"` + queue + `","partition":"a","payload":1},{"queue":"` + queue + `","partition":"b","payload":2}]}`)
		got := w.pop(queue + "?batch=2&partitions=2").Messages
		if len(got) != 2 {
			t.Fatalf("popped %+v", got)
		}
		db.lost = uuid.MustParse(got[0].PartitionID)
		rs := w.ack("completed", "__QUEUE_MODE__", got...)
		if r := rs[0]; r.Success || r.Error == nil || r.Outcome != outcome {
			t.Errorf("the lost one: %+v, want outcome %s", r, outcome)
		}
		if r := rs[1]; !r.Success || r.Outcome != "" {
			t.Errorf("the other: %+v", r)
		}
		w.stop()
	}
}

// TestAFailedItemOfAPushSaysWhetherItMayBeStored: in an answer that tells of stored ones too.
func TestAFailedItemOfAPushSaysWhetherItMayBeStored(t *testing.T) {
	t.Parallel()
	lost := &wire.Error{Code: wire.DatabaseUnavailable, Outcome: wire.OutcomeUnknown}
	g := &pushGroup{
		frames: make([]segment.Frame, 4),
		out:    []fuse.Result{{Offset: 1}, {Err: lost}, {Err: &wire.Error{Code: wire.Internal}}, {Missing: true}},
	}
	p := &pushBatch{groups: []*pushGroup{g}, items: []pushPlace{{g, 0, false}, {g, 1, false}, {g, 2, false}, {g, 3, false}}}
	rs, refusal := p.results()
	if refusal != nil {
		t.Fatal(refusal)
	}
	for i, want := range []wire.Outcome{"", wire.OutcomeUnknown, wire.OutcomeNone, wire.OutcomeNone} {
		if rs[i].Outcome != want || (rs[i].Status == wire.Failed) != (want != "") {
			t.Errorf("item %d: %+v, want outcome %q", i, rs[i], want)
		}
	}
}
