package broker

import (
	"fmt"
	"testing"

	"github.com/queengate/queengate/wire"
)

func TestABatchFindsPartitionsAndRepeatsHoweverMany(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, compareAll, compareAll + 1, 4 * compareAll} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			p := new(pushBatch)
			for round := range 2 { // the second in memory that was used before
				p.who = &identity{subject: "s"}
				// n ids on each of n partitions, and all of it once more.
				for range 2 {
					for i := range n * n {
						p.add(wire.PushItem{Queue: "q", Partition: fmt.Sprint("p", i%n), TransactionID: fmt.Append(nil, "t", round, i/n), Payload: []byte("1")})
					}
				}
				if len(p.groups) != n || len(p.items) != 2*n*n {
					t.Fatalf("%d partitions with %d items, want %d with %d", len(p.groups), len(p.items), n, 2*n*n)
				}
				for i, at := range p.items {
					first := i % (n * n)
					if want := fmt.Sprint("p", first%n); at.group.pair.Partition != want {
						t.Fatalf("item %d is in %s, want %s", i, at.group.pair.Partition, want)
					}
					if at.follower != (i >= n*n) || at.frame != first/n || at.group.frames[at.frame].TransactionID != fmt.Sprint("t", round, first/n) {
						t.Fatalf("item %d repeats: %t, stands at frame %d", i, at.follower, at.frame)
					}
				}
				p.reset()
				if len(p.spare) != n {
					t.Fatalf("%d partitions to use again, want %d", len(p.spare), n)
				}
			}
		})
	}
}

func TestABatchGivenBackKeepsNobodysMemory(t *testing.T) {
	t.Parallel()
	p := new(pushBatch)
	p.who = &identity{}
	p.add(wire.PushItem{Queue: "q", Partition: "p", TransactionID: []byte("t"), Payload: []byte("1")})
	g := p.groups[0]
	frames := g.frames
	p.answer = append(p.answer, wire.PushResult{TransactionID: "t"})
	answer := p.answer
	p.reset()
	if frames[0].Payload != nil || frames[0].TransactionID != "" || g.pair.Queue != "" || answer[0].TransactionID != "" || p.who != nil {
		t.Errorf("left behind: %+v in %+v, %+v", frames[0], g.pair, answer[0])
	}
}
