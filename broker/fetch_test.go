package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

type fetched struct {
	Entries []struct {
		Queue     string `json:"queue"`
		Partition string `json:"partition"`
		Records   []struct {
			Offset        int64           `json:"offset"`
			TransactionID string          `json:"transactionId"`
			Payload       json.RawMessage `json:"payload"`
			Ts            time.Time       `json:"ts"`
		} `json:"records"`
		HighWatermark  int64  `json:"highWatermark"`
		LogStartOffset int64  `json:"logStartOffset"`
		Error          string `json:"error"`
	} `json:"entries"`
}

func (w *world) fetch(body string) fetched {
	w.t.Helper()
	return decode[fetched](w.t, w.do("POST", "/api/v1/fetch", body).want(w.t, 200))
}

// ids are the transaction ids of an entry.
func (f fetched) ids(entry int) string {
	var out []string
	for _, r := range f.Entries[entry].Records {
		out = append(out, r.TransactionID)
	}
	return strings.Join(out, " ")
}

func TestFetchReadsFromAnOffset(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.many("q", "p", 3)
	for i := range 3 {
		w.push(fmt.Sprintf(`{"items":[{"queue":"q","partition":"p","transactionId":"x%d","payload":{"n":%d}}]}`, i, i))
	}
	w.push(`{"items":[{"queue":"q","partition":"7","transactionId":"seven","payload":null}]}`)
	a := w.do("POST", "/api/v1/fetch", `{"entries":[{"queue":"q","partition":"p","offset":0},{"queue":"q","partition":"p","offset":4},{"queue":"q","partition":7,"offset":0},
		{"queue":"q","partition":"p","offset":6},{"queue":"q","partition":"p","offset":7},{"queue":"q","offset":0},{"queue":"q","offset":1},{"queue":"none","offset":0}]}`).want(t, 200)
	got := decode[fetched](t, a)
	for i, want := range []struct {
		ids, err string
		high     int64
	}{
		{"p-0 p-1 p-2 x0 x1 x2", "", 6},
		{"x1 x2", "", 6},
		{"seven", "", 1},
		{"", "", 6},
		{"", "OFFSET_OUT_OF_RANGE", 6},
		{"", "", 0},
		{"", "OFFSET_OUT_OF_RANGE", 0},
		{"", "UNKNOWN_TOPIC_OR_PARTITION", 0},
	} {
		e := got.Entries[i]
		if got.ids(i) != want.ids || e.Error != want.err || e.HighWatermark != want.high || e.LogStartOffset != 0 {
			t.Errorf("entry %d: %+v, want %+v", i, e, want)
		}
	}
	first := got.Entries[0].Records[3]
	if first.Offset != 3 || string(first.Payload) != `{"n":0}` || time.Since(first.Ts) > time.Hour {
		t.Errorf("%+v", first)
	}
	if d := a.header.Get("X-Queen-Delivered"); d != "9" {
		t.Errorf("delivered %q, want 9", d)
	}
	if body := w.do("POST", "/api/v1/fetch", `{"entries":[]}`).want(t, 200).body; body != `{"entries":[]}` {
		t.Errorf("no entries: %s", body)
	}
	for name, body := range map[string]string{"a negative offset": `{"entries":[{"queue":"q","offset":-1}]}`, "no body": ``, "no entries": `{}`} {
		w.do("POST", "/api/v1/fetch", body).want(t, 400)
		_ = name
	}
	// A read takes nothing from a group.
	if p := w.pop("q/partition/p?batch=10"); len(p.Messages) != 6 {
		t.Errorf("popped %d", len(p.Messages))
	}
}

func TestFetchIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	big := strings.Repeat("x", 1000)
	for range 4 {
		w.push(fmt.Sprintf(`{"items":[{"queue":"q","payload":%q},{"queue":"q","payload":%q}]}`, big, big))
	}
	for body, want := range map[string]int{
		`{"queue":"q","offset":0,"maxBytes":1}`: 1, `{"queue":"q","offset":3,"maxBytes":0}`: 1, `{"queue":"q","offset":1,"maxBytes":2100}`: 2,
		`{"queue":"q","offset":0,"maxBytes":5010}`: 5, `{"queue":"q","offset":0}`: 8,
	} {
		if got := w.fetch(`{"entries":[` + body + `]}`); len(got.Entries[0].Records) != want {
			t.Errorf("%s: %d records, want %d", body, len(got.Entries[0].Records), want)
		}
	}
}

// TestFetchSeesWhereTheLogBegins: what retention removed is out of range, and the answer says where to go on.
func TestFetchSeesWhereTheLogBegins(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.many("q", "p", 2)
	w.many("q", "p2", 1)
	w.push(`{"items":[{"queue":"q","partition":"p","transactionId":"later","payload":1}]}`)
	for _, sql := range []string{"DELETE FROM queen.log_segments WHERE base_offset = 0 AND end_offset = 1", "UPDATE queen.log_partitions SET log_start = 2 WHERE name = 'p'"} {
		if _, err := w.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	got := w.fetch(`{"entries":[{"queue":"q","partition":"p","offset":0},{"queue":"q","partition":"p","offset":2}]}`)
	if e := got.Entries[0]; e.Error != "OFFSET_OUT_OF_RANGE" || e.LogStartOffset != 2 || e.HighWatermark != 3 {
		t.Errorf("%+v", e)
	}
	if got.ids(1) != "later" {
		t.Errorf("%+v", got.Entries[1])
	}
}

func TestFetchWaits(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	other := serve(t, w.pool, nil)
	w.many("q", "p", 1)
	const at = `{"entries":[{"queue":"q","partition":"p","offset":%d},{"queue":"q","partition":"later","offset":0}],"maxWaitMs":25000,"minBytes":%d}`
	next := 1
	for name, c := range map[string]struct {
		minBytes int
		push     func()
	}{
		"a push here":         {1, func() { w.one1("q", "p", `1`) }},
		"a push elsewhere":    {1, func() { other.one1("q", "p", `1`) }},
		"the third of three":  {6, func() { w.one1("q", "p", `10`); w.one1("q", "p", `20`); w.one1("q", "p", `30`) }},
		"its partition comes": {1, func() { w.one1("q", "later", `1`) }},
	} {
		done := make(chan fetched, 1)
		go func() { done <- w.fetch(fmt.Sprintf(at, next, c.minBytes)) }()
		w.until("parked", func() bool { return w.b.park.Waiting() == 1 })
		c.push()
		select {
		case got := <-done:
			if n := len(got.Entries[0].Records) + len(got.Entries[1].Records); n == 0 || (c.minBytes > 1 && n != 3) {
				t.Errorf("%s: %d records", name, n)
			}
			next = int(got.Entries[0].HighWatermark)
		case <-time.After(patience):
			t.Fatalf("%s wakes nobody", name)
		}
		if name == "its partition comes" {
			// From now on its second entry is satisfied at once: start over without it.
			if _, err := w.pool.Exec(t.Context(), "UPDATE queen.log_partitions SET name = name || id WHERE name = 'later'"); err != nil {
				t.Fatal(err)
			}
			w.b.names.clear()
			other.b.names.clear()
		}
	}
	begin := time.Now()
	got := w.fetch(fmt.Sprintf(`{"entries":[{"queue":"q","partition":"p","offset":%d}],"maxWaitMs":300}`, next))
	if d := time.Since(begin); len(got.Entries[0].Records) != 0 || d < 300*time.Millisecond {
		t.Errorf("nothing came: %v after %v", got, d)
	}
	w.client.Timeout = 20 * time.Second // less than the wait that is asked for
	for name, body := range map[string]string{
		"an error ends the wait":   fmt.Sprintf(`{"entries":[{"queue":"q","partition":"p","offset":%d},{"queue":"none","offset":0}],"maxWaitMs":30000}`, next),
		"no bytes are asked for":   fmt.Sprintf(`{"entries":[{"queue":"q","partition":"p","offset":%d}],"maxWaitMs":30000,"minBytes":0}`, next),
		"enough is there at once":  `{"entries":[{"queue":"q","partition":"p","offset":0}],"maxWaitMs":30000}`,
		"there is nothing to read": `{"entries":[],"maxWaitMs":30000}`,
	} {
		if _, err := w.try("POST", "/api/v1/fetch", body); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// one1 pushes one payload to a partition.
func (w *world) one1(queue, partition, payload string) {
	w.push(fmt.Sprintf(`{"items":[{"queue":%q,"partition":%q,"payload":%s}]}`, queue, partition, payload))
}

// TestAFetchWhoseClientHangsUpEnds has another fetch that came before it, and ends before it unless the hang-up is noticed.
func TestAFetchWhoseClientHangsUpEnds(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.many("q", "p", 1)
	const waits = `{"entries":[{"queue":"q","partition":"p","offset":1}],"maxWaitMs":30000}`
	stays := make(chan fetched, 1)
	w.client.Timeout = 4 * patience
	go func() { stays <- w.fetch(waits) }()
	w.until("parked", func() bool { return w.b.park.Waiting() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+w.addr+"/api/v1/fetch", strings.NewReader(waits))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if r, err := w.client.Do(req); err == nil {
			r.Body.Close()
		}
	}()
	w.until("both parked", func() bool { return w.b.park.Waiting() == 2 })
	cancel()
	w.until("one left", func() bool { return w.b.park.Waiting() == 1 })
	w.one1("q", "p", `1`)
	if got := <-stays; len(got.Entries[0].Records) != 1 {
		t.Errorf("the one that stays got %v: the other one has only outlived it", got)
	}
}

type changed struct {
	SafeTime         time.Time `json:"safeTime"`
	SafeTimeDegraded bool      `json:"safeTimeDegraded"`
	Entries          []struct {
		Queue      string `json:"queue"`
		Partitions []struct {
			Name        string    `json:"name"`
			LastOffset  int64     `json:"lastOffset"`
			LogStart    int64     `json:"logStart"`
			LastWriteAt time.Time `json:"lastWriteAt"`
		} `json:"partitions"`
		Next  *string `json:"next"`
		Error string  `json:"error"`
	} `json:"entries"`
}

func (w *world) changes(body string) changed {
	w.t.Helper()
	return decode[changed](w.t, w.do("POST", "/api/v1/partitions/changed", body).want(w.t, 200))
}

func TestPartitionsChangedPages(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for _, p := range []string{"b", "a", "c"} {
		w.many("q", p, 2)
	}
	var names []string
	for after, rounds := "", 0; rounds < 5; rounds++ {
		got := w.changes(fmt.Sprintf(`{"entries":[{"queue":"q","limit":2,"after":%q}]}`, after))
		for _, p := range got.Entries[0].Partitions {
			names = append(names, p.Name)
			if p.LastOffset != 1 || p.LogStart != 0 || time.Since(p.LastWriteAt) > time.Hour {
				t.Errorf("%+v", p)
			}
		}
		if got.Entries[0].Next == nil {
			break
		}
		after = *got.Entries[0].Next
	}
	if fmt.Sprint(names) != "[a b c]" {
		t.Errorf("pages: %v", names)
	}
	got := w.changes(`{"entries":[{"queue":"none"},{"queue":"q","after":"!"},{"queue":"q","after":"cGxhaW4"}]}`)
	if got.Entries[0].Error != "UNKNOWN_TOPIC_OR_PARTITION" || got.Entries[1].Error != "BAD_CURSOR" || got.Entries[2].Error != "BAD_CURSOR" {
		t.Errorf("%+v", got.Entries)
	}
	if none := w.changes(`{"entries":[]}`); none.SafeTime.IsZero() || len(none.Entries) != 0 {
		t.Errorf("%+v", none)
	}
}

// TestSafeTimeIsSafe: a store that has begun and is not committed holds the safe time back, so that a reader who asks
// since then finds it.
func TestSafeTimeIsSafe(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.many("q", "p", 1)
	w.many("q", "quiet", 1)
	for _, stamps := range []string{"log_partitions SET last_write_at = last_write_at", "log_writes SET written_at = written_at"} {
		if _, err := w.pool.Exec(t.Context(), "UPDATE queen."+stamps+" - interval '1 hour'"); err != nil {
			t.Fatal(err)
		}
	}
	since := w.changes(`{"entries":[]}`).SafeTime
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // closed unless the test failed
	const push = `SELECT FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id,
		queen.push_bundle(true, ARRAY[p.id], ARRAY[1], ARRAY[1], ARRAY[-1], ARRAY[0], ARRAY[q.tenant_id], ARRAY['blob'::bytea], ARRAY['0123456789abcdef'::bytea])
		WHERE p.name = 'p'`
	if _, err := tx.Exec(t.Context(), push); err != nil {
		t.Fatal(err)
	}
	ask := func(since time.Time) (string, time.Time) {
		got := w.changes(fmt.Sprintf(`{"entries":[{"queue":"q","since":%q}]}`, since.Format(time.RFC3339Nano)))
		var names []string
		for _, p := range got.Entries[0].Partitions {
			names = append(names, p.Name)
		}
		return strings.Join(names, " "), got.SafeTime
	}
	names, next := ask(since)
	if names != "" {
		t.Fatalf("before the commit: %q", names)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names, _ := ask(next); names != "p" {
		t.Errorf("after the commit, since %v: %q, want p", next, names)
	}
}

func TestPartitionLivenessCounts(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.many("q", "a", 2)
	w.many("q", "b", 1)
	w.many("r", "c", 1)
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.log_partitions SET last_write_at = last_write_at - interval '30 minutes' WHERE name = 'b'"); err != nil {
		t.Fatal(err)
	}
	type live struct {
		Total      int `json:"total"`
		LastMinute int `json:"writtenLastMinute"`
		LastHour   int `json:"writtenLastHour"`
		Partitions []struct {
			Queue       string `json:"queue"`
			Partition   string `json:"partition"`
			Messages    int    `json:"messages"`
			IdleSeconds int    `json:"idleSeconds"`
		} `json:"partitions"`
	}
	got := decode[live](t, w.do("GET", "/api/v1/analytics/partition-liveness?queue=q&limit=2", "").want(t, 200))
	if got.Total != 2 || got.LastMinute != 1 || got.LastHour != 2 || len(got.Partitions) != 2 || got.Partitions[0].Partition != "a" || got.Partitions[0].Messages != 2 || got.Partitions[1].IdleSeconds < 1700 {
		t.Errorf("%+v", got)
	}
	if all := decode[live](t, w.do("GET", "/api/v1/analytics/partition-liveness", "").want(t, 200)); all.Total != 3 {
		t.Errorf("%+v", all)
	}
	w.do("GET", "/api/v1/analytics/partition-liveness?limit=201", "").want(t, 400)
}

// TestAPopIsBoundedByBytes: a large batch of large messages comes in several answers.
func TestAPopIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	big := strings.Repeat("x", 3<<20)
	for range 8 {
		w.push(fmt.Sprintf(`{"items":[{"queue":"q","payload":%q}]}`, big))
	}
	for _, want := range []int{5, 3} {
		got := w.pop("q?batch=100&autoAck=true")
		if len(got.Messages) != want {
			t.Fatalf("%d messages of 3 MiB, want %d", len(got.Messages), want)
		}
	}
}
