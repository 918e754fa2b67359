package check

import (
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/queengate/queengate/deploy/rel/hist"
)

// million writes a good history of about a million events: 16 queues, pushes of 5, each popped, acknowledged and fetched.
func million(b *testing.B, events int) string {
	b.Helper()
	var queues []hist.Queue
	for i := range 16 {
		queues = append(queues, hist.Queue{
			Name: "q" + strconv.Itoa(i), Workload: "W2", Partitions: []string{"p0"}, LeaseMs: 3000, DedupMs: 3_600_000,
			Groups: []hist.Group{{Name: "g", Drains: true}},
		})
	}
	path := filepath.Join(b.TempDir(), HistoryFile)
	s := &story{logs: map[string][]hist.Record{}, at: map[string]int64{}, tries: map[string]int{}}
	s.h = hist.Header{Run: "million", Topology: hist.Topology{Brokers: []string{"br1"}}, Queues: queues}
	w, err := hist.Create(path, s.h)
	if err != nil {
		b.Fatal(err)
	}
	under := map[int64]hist.Open{}
	flush := func() {
		for _, e := range s.events {
			if e.Kind == hist.Invoked {
				under[e.Op] = w.Invoke(hist.Call{W: e.W, Node: e.Node, F: e.F}, e.A)
			} else {
				under[e.Op].Complete(e.Kind, e.Status, e.V, nil)
				delete(under, e.Op)
			}
		}
		s.events = s.events[:0]
	}
	read := func(q string, from, to int) {
		r := s.logs[q+"/p0"]
		to = min(to, len(r))
		s.begin(hist.Fetch, &hist.FetchArgs{Entries: []hist.FetchEntry{{Queue: q, Partition: "p0", Offset: int64(from)}}}).ok(&hist.FetchAnswer{
			Entries: []hist.FetchResult{{Queue: q, Partition: "p0", Records: r[from:to], HighWatermark: int64(len(r))}},
		})
	}
	w.Phase(hist.Load)
	for n := 0; n < events; {
		for _, q := range queues {
			at := len(s.logs[q.Name+"/p0"])
			s.push(q.Name, at, at+1, at+2, at+3, at+4)
			s.ack(s.pop(q.Name, "g", 5))
			read(q.Name, at, at+5)
			n += len(s.events)
			flush()
		}
	}
	w.Phase(hist.Final)
	for _, q := range queues {
		for from := 0; from < len(s.logs[q.Name+"/p0"]); from += 1000 {
			read(q.Name, from, from+1000)
			flush()
		}
	}
	w.Phase(hist.Done)
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return path
}

// BenchmarkJudge judges a history of a million events, from the file.
func BenchmarkJudge(b *testing.B) {
	path := million(b, 1_000_000)
	b.ReportAllocs()
	for b.Loop() {
		h, err := hist.OpenFile(path)
		if err != nil {
			b.Fatal(err)
		}
		r, err := Judge(h, Options{})
		if err != nil || r.Verdict != Pass {
			b.Fatal(err, r.Verdict, r.Reasons)
		}
		if err := h.Close(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(r.Counts.Events), "events/op")
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/(1<<20), "MiB")
}
