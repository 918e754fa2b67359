package quota

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// wantLife is the table of docs/design/life-cycle.md: what is answered in a state, by direction. A star marks what is
// decided with the plan, once the body is known.
const wantLife = `
| State | push | mixed | write | out | read | remove |
|---|---|---|---|---|---|---|
| active | | | | | | |
| push_blocked | push_blocked* | push_blocked* | | | | |
| export_only | export_only | export_only* | export_only | | | |
| paused | rate_limited | rate_limited | rate_limited | rate_limited | rate_limited | rate_limited |
| suspended | cluster_suspended | cluster_suspended | cluster_suspended | cluster_suspended | cluster_suspended | cluster_suspended |
| deleting | cluster_suspended | cluster_suspended | cluster_suspended | cluster_suspended | cluster_suspended | cluster_suspended |
`

// cellsOf reads the rows of wantLife.
func cellsOf(t *testing.T) map[plans.Status]map[wire.Flow]string {
	t.Helper()
	table := map[plans.Status]map[wire.Flow]string{}
	for _, line := range strings.Split(strings.TrimSpace(wantLife), "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		s := plans.ParseStatus(strings.TrimSpace(cells[0]))
		if s.String() != strings.TrimSpace(cells[0]) || len(cells) != 1+len(wire.Flows) {
			t.Fatalf("row %q", line)
		}
		table[s] = map[wire.Flow]string{}
		for i, f := range wire.Flows {
			table[s][f] = strings.TrimSpace(cells[i+1])
		}
	}
	return table
}

var statuses = []plans.Status{plans.Active, plans.PushBlocked, plans.ExportOnly, plans.Paused, plans.Suspended, plans.Deleting}

// Every cell of the table, at the head and with the plan.
func TestWhatAStateLetsThrough(t *testing.T) {
	t.Parallel()
	table := cellsOf(t)
	for _, s := range statuses {
		for _, f := range wire.Flows {
			want, found := table[s][f]
			if !found {
				t.Fatalf("%s, %s is not in the table", s, f)
			}
			code, late := strings.CutSuffix(want, "*")
			head := AskLife(s, f)
			if late {
				if head != nil {
					t.Errorf("%s, %s: refused at the head with %s", s, f, head.Code)
				}
				continue
			}
			got := ""
			if head != nil {
				got = string(head.Code)
			}
			if got != code {
				t.Errorf("%s, %s: got %q, want %q", s, f, got, code)
			}
			if got == string(wire.RateLimited) && head.RetryAfterSeconds() != 30 {
				t.Errorf("%s, %s: Retry-After %d, want 30", s, f, head.RetryAfterSeconds())
			}
		}
	}
}

// What stores messages is refused by the ledger in every state but the best, whatever the head let through.
func TestAStateHoldsBackWhatStores(t *testing.T) {
	t.Parallel()
	table := cellsOf(t)
	for _, s := range statuses {
		g := testGate()
		c := &plans.Cluster{ID: uuid.New(), Slug: "c", Status: s}
		for _, cost := range []wire.Cost{wire.CostMessages, wire.CostReplay} {
			_, _, e := g.Admit(c, &Ask{Cost: cost, Messages: 1}, start)
			got := ""
			if e != nil {
				got = string(e.Code)
			}
			if want := strings.TrimSuffix(table[s][wire.FlowMixed], "*"); got != want {
				t.Errorf("%s, cost %d: got %q, want %q", s, cost, got, want)
			}
		}
		a, _, e := g.Admit(c, &Ask{Cost: wire.CostSettle}, start)
		if e != nil {
			t.Fatalf("%s: a transaction that only acknowledges: %v", s, e)
		}
		g.Settle(a, Outcome{}, start)
	}
}

// A worse state refuses whatever a better one does, so that the worse of two states is the one that refuses more.
func TestStatesAreOrderedByWhatTheyRefuse(t *testing.T) {
	t.Parallel()
	for i, better := range statuses[:len(statuses)-1] {
		for _, f := range wire.Flows {
			if sentenceOf(better, f).refusal != nil && sentenceOf(statuses[i+1], f).refusal == nil {
				t.Errorf("%s refuses %s and %s does not", better, f, statuses[i+1])
			}
		}
	}
	if !slices.IsSorted(statuses) {
		t.Error("the states are not in their order")
	}
}

// Whatever is not in the table is closed.
func TestAnUnknownStateOrDirectionIsClosed(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]*wire.Error{
		"a state":     AskLife(plans.Status(200), wire.FlowRead),
		"a direction": AskLife(plans.Active, wire.Flow(200)),
		"no client's": AskLife(plans.Active, wire.FlowNone),
		"a word":      AskLife(plans.ParseStatus("hibernating"), wire.FlowRead),
	} {
		if e == nil || e.Code != wire.ClusterSuspended {
			t.Errorf("%s that is not known: %v", name, e)
		}
	}
}

// The page shows the table that is enforced.
func TestThePageShowsTheTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/design/life-cycle.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), strings.TrimSpace(wantLife)) {
		t.Errorf("docs/design/life-cycle.md does not contain the table\n%s", wantLife)
	}
}
