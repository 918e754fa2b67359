package hist

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func create(t *testing.T) (*Writer, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "history.jsonl.gz")
	w, err := Create(path, Header{Run: "r1", Seed: 7, Cmd: "rel run -seed 7", Queues: []Queue{{Name: "q", LeaseMs: 3000}}})
	if err != nil {
		t.Fatal(err)
	}
	return w, path
}

func read(t *testing.T, raw []byte) (*Reader, []Event) {
	t.Helper()
	r, err := NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	var all []Event
	for e, err := range r.Events() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return r, all
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	w, path := create(t)
	offset := int64(0)
	id := ID{Tenant: "a", Queue: "q", Partition: "p0", Prod: "w1.0", Seq: 1}
	payload := Payload{ID: id, Canary: "c<&>", Pad: "ü"}.JSON()
	push := &PushArgs{Items: []PushItem{{Queue: "q", Partition: "p0", TransactionID: id.String(), Payload: payload}}}
	pushed := &PushAnswer{{MessageID: "m", TransactionID: id.String(), Status: "queued", Offset: &offset}}
	w.Phase(Load)
	op := w.Invoke(Call{W: "W1", Client: 3, Node: "br1", Tenant: "a", F: Push}, push)
	op.Complete(OK, 201, pushed, nil)
	w.Fault(Fault{ID: 1, Name: "N8", Action: "pg-immediate", Target: "pg", Step: FaultBegins, Outage: true})
	pop := w.Invoke(Call{W: "W2", Client: 4, Node: "br2", F: Pop}, &PopArgs{Queue: "q", Wait: true})
	pop.Complete(Info, 0, nil, errors.New("reset by peer"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, got := read(t, raw)
	if r.Header.Run != "r1" || r.Header.Format != Format || r.Header.Queue("", "q").Lease() != 3*time.Second || r.Cut() != nil {
		t.Errorf("header %+v, cut %v", r.Header, r.Cut())
	}
	for i := range got {
		if i > 0 && got[i].T < got[i-1].T {
			t.Errorf("event %d is stamped before the one in front of it", i)
		}
		got[i].T = 0
	}
	want := []Event{
		{Kind: Noted, F: Phase, A: &PhaseNote{Phase: Load}},
		{Kind: Invoked, Op: 1, W: "W1", Client: 3, Node: "br1", Tenant: "a", F: Push, A: push},
		{Kind: OK, Op: 1, W: "W1", Client: 3, Node: "br1", Tenant: "a", F: Push, Status: 201, V: pushed},
		{Kind: Nemesis, Node: "pg", A: &Fault{ID: 1, Name: "N8", Action: "pg-immediate", Target: "pg", Step: FaultBegins, Outage: true}},
		{Kind: Invoked, Op: 2, W: "W2", Client: 4, Node: "br2", F: Pop, A: &PopArgs{Queue: "q", Wait: true}},
		{Kind: Info, Op: 2, W: "W2", Client: 4, Node: "br2", F: Pop, Err: "reset by peer"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	back, err := ParsePayload(got[1].A.(*PushArgs).Items[0].Payload)
	if err != nil || back.ID != id || back.Canary != "c<&>" || back.Pad != "ü" {
		t.Errorf("payload %+v, %v", back, err)
	}
	if parsed, err := ParseID(id.String()); err != nil || parsed != id {
		t.Errorf("id %+v, %v", parsed, err)
	}
}

func TestACutHistoryGivesItsWholeLines(t *testing.T) {
	t.Parallel()
	w, path := create(t)
	for i := range 500 {
		w.Note(Remark, &RemarkNote{Text: strconv.Itoa(i)}) // each is flushed
	}
	// The harness dies here: nothing is closed.
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		raw   []byte
		least int
	}{
		"not closed":        {raw, 500},
		"last bytes torn":   {raw[:len(raw)-3], 499},
		"torn in the midst": {raw[:len(raw)/2], 200},
	} {
		r, got := read(t, c.raw)
		if r.Cut() == nil {
			t.Errorf("%s: the cut is not noticed", name)
		}
		if len(got) < c.least {
			t.Errorf("%s: %d events, want at least %d", name, len(got), c.least)
		}
		for i := range got {
			if text := got[i].A.(*RemarkNote).Text; text != strconv.Itoa(i) {
				t.Fatalf("%s: event %d is %q", name, i, text)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestManyGoroutinesWriteOneHistory(t *testing.T) {
	t.Parallel()
	w, path := create(t)
	var all sync.WaitGroup
	for c := range 8 {
		all.Go(func() {
			for range 300 {
				op := w.Invoke(Call{W: "W1", Client: c, F: Health}, &HealthArgs{})
				op.Complete(OK, 200, &HealthAnswer{Status: "healthy"}, nil)
			}
		})
	}
	all.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, got := read(t, raw)
	open := map[int64]int{} // operation -> client
	var last time.Duration
	for _, e := range got {
		if e.T < last {
			t.Fatal("stamps go back")
		}
		last = e.T
		if e.Kind == Invoked {
			open[e.Op] = e.Client
		} else if client, ok := open[e.Op]; !ok || client != e.Client {
			t.Fatalf("operation %d of client %d came back unasked", e.Op, e.Client)
		} else {
			delete(open, e.Op)
		}
	}
	if len(got) != 8*300*2 || len(open) != 0 {
		t.Errorf("%d events, %d open", len(got), len(open))
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		seen Seen
		want Kind
	}{
		"refused dial":                     {Seen{}, Fail},
		"no answer":                        {Seen{Sent: true}, Info},
		"201":                              {Seen{Sent: true, Status: 201}, OK},
		"204":                              {Seen{Sent: true, Status: 204}, OK},
		"200 that says success false":      {Seen{Sent: true, Status: 200, Refused: true}, Fail},
		"400":                              {Seen{Sent: true, Status: 400}, Fail},
		"429":                              {Seen{Sent: true, Status: 429}, Fail},
		"408 is not in the list":           {Seen{Sent: true, Status: 408}, Info},
		"500":                              {Seen{Sent: true, Status: 500}, Info},
		"503 without a word":               {Seen{Sent: true, Status: 503}, Info},
		"503 that says none":               {Seen{Sent: true, Status: 503, Outcome: "none"}, Fail},
		"504 that says unknown":            {Seen{Sent: true, Status: 504, Outcome: "unknown"}, Info},
		"a 2xx is not refused by outcomes": {Seen{Sent: true, Status: 200, Outcome: "none"}, OK},
	} {
		if got := Outcome(c.seen); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	for status, want := range map[string]Item{
		"queued": ItemQueued, "duplicate": ItemDuplicate, "buffered": ItemBuffered, "failed": ItemFailed, "error": ItemFailed,
		"whatever": ItemUnknown,
	} {
		if got := ItemOutcome(OK, status, ""); got != want {
			t.Errorf("%s: %d, want %d", status, got, want)
		}
		if got := ItemOutcome(Info, status, ""); got != ItemUnknown {
			t.Errorf("%s of an unknown operation: %d", status, got)
		}
		if got := ItemOutcome(Fail, status, ""); got != ItemFailed {
			t.Errorf("%s of a failed operation: %d", status, got)
		}
	}
	for outcome, want := range map[string]Item{"": ItemFailed, "none": ItemFailed, "unknown": ItemUnknown} {
		if got := ItemOutcome(OK, "failed", outcome); got != want {
			t.Errorf("failed with outcome %q: %d, want %d", outcome, got, want)
		}
	}
	for name, c := range map[string]struct {
		op   Kind
		r    AckResult
		want Kind
	}{
		"done":                            {OK, AckResult{Success: true}, OK},
		"refused":                         {OK, AckResult{Error: "invalid_lease"}, OK},
		"undecided, and surely not done":  {OK, AckResult{Outcome: "none"}, OK},
		"undecided, and nobody knows":     {OK, AckResult{Outcome: "unknown"}, Info},
		"of an operation that never came": {Info, AckResult{}, Info},
	} {
		if got := AckOutcome(c.op, &c.r); got != c.want {
			t.Errorf("an ack that is %s: %s, want %s", name, got, c.want)
		}
	}
}
