package broker

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/broker/store"
	"github.com/queengate/queengate/wire"
)

// letter is a dead letter as a listing shows it.
type letter struct {
	ID            string
	TransactionID string
	PartitionID   string
	Queue         string
	Partition     string
	ConsumerGroup string
	ErrorMessage  string
	RetryCount    int
	Data          any
	CreatedAt     time.Time
	FailedAt      time.Time
}

type letterPage struct {
	Messages   []letter
	Pagination struct{ Limit, Offset int }
	Total      int
	NextCursor *string
}

func (w *world) letters(query string, headers ...string) letterPage {
	w.t.Helper()
	return decode[letterPage](w.t, w.do("GET", "/api/v1/dlq?"+query, "", headers...).want(w.t, 200))
}

// file pops the next message of a group and makes a dead letter of it.
func (w *world) file(queue, group, reason string) message {
	w.t.Helper()
	got := w.pop(queue + "?batch=1&subscriptionMode=all&consumerGroup=" + group)
	if len(got.Messages) != 1 {
		w.t.Fatalf("nothing to file in %s for %s", queue, group)
	}
	m := got.Messages[0]
	body := fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"dlq","error":%q,"consumerGroup":%q}`,
		m.TransactionID, m.PartitionID, m.LeaseID, reason, group)
	if r := decode[[]acked](w.t, w.do("POST", "/api/v1/ack", body).want(w.t, 200)); !r[0].DLQ {
		w.t.Fatalf("not filed: %+v", r)
	}
	return m
}

type replayResult struct {
	Success               bool
	Result                string
	Queue, Partition      string
	ConsumerGroup         string
	DLQID                 string
	OriginalTransactionID string
	ReplayedAs            pushed
	DLQRowRemoved         *bool
	Error                 string
	Code                  wire.Code
}

func (w *world) replay(id, body string, headers ...string) (replayResult, int) {
	w.t.Helper()
	a := w.do("POST", "/api/v1/dlq/"+id+"/replay", body, headers...)
	return decode[replayResult](w.t, a), a.status
}

func TestAReplayIsOneMoveToTheTail(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	const payload = `{"n": 1.0,  "big":12345678901234567890, "s":"\u00e9", "n": 2}`
	w.push(`{"items":[{"queue":"q","partition":"p","transactionId":"a","payload":` + payload + `}]}`)
	w.file("q", "g", "boom")
	w.file("q", "h", "bang")
	w.push(`{"items":[{"queue":"q","partition":"p","transactionId":"b","payload":2}]}`)
	if n := len(w.pop("q?autoAck=true&consumerGroup=g").Messages); n != 1 {
		t.Fatalf("%d messages behind the dead one", n)
	}

	page := w.letters("queue=q&consumerGroup=g")
	if page.Total != 1 || page.Messages[0].ErrorMessage != "boom" || page.Messages[0].TransactionID != "a" || page.Messages[0].Partition != "p" {
		t.Fatalf("letters of g: %+v", page)
	}
	parked := make(chan popped, 1)
	go func() { parked <- w.pop("q?wait=true&timeout=20000&consumerGroup=g&autoAck=true") }()
	w.until("parked", func() bool { return w.b.park.Waiting() == 1 })

	r, status := w.replay(page.Messages[0].ID, "")
	if status != 200 || !r.Success || r.Result != "moved" || r.ConsumerGroup != "g" || r.OriginalTransactionID != "a" ||
		r.ReplayedAs.TransactionID != "dlq:"+page.Messages[0].ID || *r.ReplayedAs.Offset != 2 || r.ReplayedAs.Status != "queued" ||
		r.DLQRowRemoved == nil || !*r.DLQRowRemoved || r.Partition != "p" || r.DLQID != page.Messages[0].ID {
		t.Fatalf("%d %+v", status, r)
	}
	select {
	case got := <-parked:
		if len(got.Messages) != 1 || string(got.Messages[0].Data) != payload || got.Messages[0].ID != r.ReplayedAs.MessageID ||
			got.Messages[0].TransactionID != r.ReplayedAs.TransactionID {
			t.Errorf("the parked pop got %+v", got)
		}
	case <-time.After(patience):
		t.Fatal("the replay wakes nobody")
	}
	if left := w.letters("queue=q"); left.Total != 1 || left.Messages[0].ConsumerGroup != "h" || left.Messages[0].ErrorMessage != "bang" {
		t.Errorf("left over: %+v", left)
	}
	if again, status := w.replay(page.Messages[0].ID, "{}"); status != 404 || again.Result != "gone" || again.Success || again.Error == "" {
		t.Errorf("a second replay: %d %+v", status, again)
	}
	// Raw payload bytes are counted once more: the message is in the log twice.
	var retained, live int64
	if err := w.pool.QueryRow(t.Context(), `SELECT (SELECT sum(raw_bytes) FROM queen.log_segments),
		(SELECT sum(retained_bytes) FROM queen.log_partitions)`).Scan(&retained, &live); err != nil {
		t.Fatal(err)
	}
	if want := int64(2*len(payload) + 1); retained != want || live != want {
		t.Errorf("retained %d and %d, want %d", retained, live, want)
	}
}

func TestConcurrentReplaysMoveOnce(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	other := serve(t, w.pool, nil)
	for i := range 5 {
		w.one("q", fmt.Sprint(i))
		w.file("q", "g", "x")
		id := w.letters("queue=q").Messages[0].ID
		var mu sync.Mutex
		var wg sync.WaitGroup
		moved := 0
		for k := range 8 {
			from := w
			if k%2 == 1 {
				from = other
			}
			wg.Go(func() {
				r, status := from.replay(id, "")
				mu.Lock()
				defer mu.Unlock()
				switch {
				case status == 200 && r.Result == "moved":
					moved++
				case status != 404 || r.Result != "gone":
					t.Errorf("%d %+v", status, r)
				}
			})
		}
		wg.Wait()
		if moved != 1 {
			t.Errorf("moved %d times", moved)
		}
		if n := len(w.pop("q?autoAck=true&consumerGroup=g&wait=true&timeout=10000").Messages); n != 1 {
			t.Errorf("%d messages after the replays", n)
		}
	}
}

func TestAReplayMeetsItsOwnTraces(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]int{"within the window": 3600, "without deduplication": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, nil)
			w.do("POST", "/api/v1/configure", fmt.Sprintf(`{"queue":"q","options":{"dedupWindowSeconds":%d}}`, window)).want(t, 200)
			w.one("q", "a")
			w.file("q", "g", "x")
			id := w.letters("").Messages[0].ID
			first := w.one("q", "dlq:"+id) // as after a restored backup
			r, status := w.replay(id, "")
			switch {
			case window == 0:
				if status != 200 || r.Result != "moved" || *r.ReplayedAs.Offset != 2 {
					t.Errorf("%d %+v", status, r)
				}
			case status != 200 || r.Result != "duplicate" || *r.ReplayedAs.Offset != *first.Offset || r.ReplayedAs.MessageID != first.MessageID:
				t.Errorf("%d %+v, want a duplicate of %+v", status, r, first)
			}
			if n := w.letters("").Total; n != 0 {
				t.Errorf("%d letters left", n)
			}
		})
	}
}

func TestAReplayMayGoElsewhere(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	tenant := uuid.New()
	two := int64(2)
	h := []string{wire.HeaderTenant, tenant.String(), "Authorization", m.token(wire.CellClaims{
		Tenant: tenant, Access: wire.AccessReadWrite, Subject: "key-9", MaxQueues: &two,
	})}
	w.push(`{"items":[{"queue":"q","transactionId":"a","payload":{"k":1}}]}`, h...)
	got := w.pop("q?batch=1", h...).Messages[0]
	w.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"a","partitionId":%q,"status":"dlq"}`, got.PartitionID), h...).want(t, 200)
	id := w.letters("", h...).Messages[0].ID

	for body, code := range map[string]wire.Code{
		`{"queue":"r"}`:                       wire.InvalidRequest,
		`{"partition":"r"}`:                   wire.InvalidRequest,
		`{"queue":"","partition":"p"}`:        wire.InvalidRequest,
		`{"queue":"r","partition":""}`:        wire.InvalidRequest,
		`{"queue":"r","partition":null}`:      wire.InvalidRequest,
		`{"queue":7,"partition":"p"}`:         wire.InvalidRequest,
		`{"queue":"r","queue":"s"}`:           wire.InvalidRequest,
		`{"queue":"a\u0001","partition":"p"}`: wire.InvalidRequest,
		`[]`:                                  wire.InvalidRequest,
	} {
		if r, status := w.replay(id, body, h...); status != 400 || r.Code != code {
			t.Errorf("%s: %d %+v", body, status, r)
		}
	}
	r, status := w.replay(id, `{"queue":"r","partition":"lane"}`, h...)
	if status != 200 || r.Queue != "r" || r.Partition != "lane" || *r.ReplayedAs.Offset != 0 {
		t.Fatalf("%d %+v", status, r)
	}
	moved := w.pop("r?autoAck=true", h...).Messages
	if len(moved) != 1 || string(moved[0].Data) != `{"k":1}` || moved[0].ProducerSub == nil || *moved[0].ProducerSub != "key-9" {
		t.Errorf("moved: %+v", moved)
	}

	w.push(`{"items":[{"queue":"q","transactionId":"b","payload":1}]}`, h...)
	got = w.pop("q?batch=1", h...).Messages[0]
	w.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"b","partitionId":%q,"status":"dlq"}`, got.PartitionID), h...).want(t, 200)
	id = w.letters("", h...).Messages[0].ID
	if r, status := w.replay(id, `{"queue":"third","partition":"p"}`, h...); status != 403 || r.Code != wire.QuotaExceeded || r.DLQRowRemoved == nil || *r.DLQRowRemoved {
		t.Errorf("over the cap: %d %+v", status, r)
	}
	if n := w.letters("", h...).Total; n != 1 {
		t.Errorf("%d letters after a refused replay", n)
	}
}

func TestARetryTakesTheNewestLetter(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a/b c")
	m := w.file("q", "g", "first")
	w.file("q", "h", "second")
	path := "/api/v1/messages/" + m.PartitionID + "/" + url.PathEscape("a/b c") + "/retry"
	if a := w.do("POST", path, `{"queue":"q","partition":"p"}`); a.status != 400 {
		t.Errorf("a retry elsewhere: %d %s", a.status, a.body)
	}
	r := decode[replayResult](t, w.do("POST", path, "").want(t, 200))
	if r.ConsumerGroup != "h" || r.Result != "moved" || r.OriginalTransactionID != "a/b c" {
		t.Errorf("%+v", r)
	}
	if left := w.letters(""); left.Total != 1 || left.Messages[0].ConsumerGroup != "g" {
		t.Errorf("left: %+v", left)
	}
	w.do("POST", path, "{}").want(t, 200)
	a := w.do("POST", path, "{}").want(t, 404)
	if !strings.HasPrefix(a.body, `{"success":false,"partitionId":"`+m.PartitionID+`","transactionId":"a/b c","message":`) {
		t.Errorf("the third: %s", a.body)
	}
	w.do("POST", "/api/v1/messages/nope/a/retry", "").want(t, 404)
}

func TestWhatCannotBeReplayedStays(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	w.file("q", "g", "x")
	id := w.letters("").Messages[0].ID
	set := func(sql string) {
		t.Helper()
		if _, err := w.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	set("UPDATE queen.log_dlq SET consumer_group = '__timer__'")
	if r, status := w.replay(id, ""); status != 400 || !strings.Contains(r.Error, "timer") {
		t.Errorf("of a timer: %d %+v", status, r)
	}
	set("UPDATE queen.log_dlq SET consumer_group = 'g', payload = NULL, message_id = NULL, created_at = NULL")
	if r, status := w.replay(id, ""); status != 400 || !strings.Contains(r.Error, "payload") {
		t.Errorf("without a payload: %d %+v", status, r)
	}
	if page := w.letters("queue=q"); page.Total != 1 || page.Messages[0].Data != nil {
		t.Errorf("%+v", page)
	}
	w.do("POST", "/api/v1/dlq/nope/replay", "").want(t, 400)
	if _, status := w.replay(uuid.NewString(), ""); status != 404 {
		t.Errorf("an unknown letter: %d", status)
	}
	set("UPDATE queen.log_dlq SET payload = '1'")
	w.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`).want(t, 200)
	w.until("maintenance", func() bool { return w.do("POST", "/api/v1/dlq/"+id+"/replay", "").status == 503 })
	if r, status := w.replay(id, ""); status != 503 || r.Result != "maintenance" || r.DLQRowRemoved == nil || *r.DLQRowRemoved {
		t.Errorf("under maintenance: %d %+v", status, r)
	}
}

func TestLettersAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.do("POST", "/api/v1/configure", `{"queue":"empty"}`).want(t, 200)
	w.bulk("q", "p", 25)
	w.bulk("r", "p", 3)
	var got []string
	cursor := ""
	for range 10 {
		page := w.letters("queue=q&limit=10&cursor=" + url.QueryEscape(cursor))
		for _, l := range page.Messages {
			got = append(got, l.TransactionID)
		}
		if page.NextCursor == nil {
			break
		}
		cursor = *page.NextCursor
	}
	if len(got) != 25 || got[0] != "q-25" || got[24] != "q-1" {
		t.Errorf("by cursor: %v", got)
	}
	for query, more := range map[string]bool{"limit=24": true, "limit=25": false, "limit=26": false, "limit=5&offset=19": true, "limit=5&offset=20": false, "offset=25": false} {
		if page := w.letters("queue=q&" + query); (page.NextCursor != nil) != more {
			t.Errorf("%s: a list of 25 has %d letters and the next cursor %v", query, page.Total, page.NextCursor)
		}
		if page := w.browse("queue=q&status=dead_letter&" + query); (page.NextCursor != nil) != more {
			t.Errorf("%s: a browse of 25 has %d letters and the next cursor %v", query, page.Total, page.NextCursor)
		}
	}
	page := w.letters("queue=q&limit=10&offset=10")
	if page.Total != 10 || page.Messages[0].TransactionID != "q-15" || page.Pagination.Limit != 10 || page.Pagination.Offset != 10 {
		t.Errorf("by offset: %+v", page)
	}
	if m := page.Messages[0]; !m.CreatedAt.Equal(m.FailedAt) || m.RetryCount != 2 || m.ErrorMessage != "failed at step 15 of job 7" || m.PartitionID == "" {
		t.Errorf("%+v", m)
	}
	for query, want := range map[string]int{
		"": 28, "queue=r": 3, "queue=empty": 0, "queue=none": 0, "partition=p": 28, "partition=x": 0, "consumerGroup=odd": 15, "queue=r&consumerGroup=odd": 2,
		"from=2020-01-01T00:00:00Z&to=2020-02-01T00:00:00Z": 0, "from=2020-01-01T00:00:00Z": 28,
	} {
		if n := w.letters("limit=1000&" + query).Total; n != want {
			t.Errorf("%s: %d letters, want %d", query, n, want)
		}
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "offset=-1", "from=yesterday", "cursor=zzz", "queue=a&queue=b", "queue=%01"} {
		w.do("GET", "/api/v1/dlq?"+query, "").want(t, 400)
	}
}

// bulk files n letters at once: numbered from 1, a second apart, of group odd or even.
func (w *world) bulk(queue, partition string, n int) {
	w.t.Helper()
	w.bulkOf(DefaultTenant, queue, partition, n)
}

func (w *world) bulkOf(tenant uuid.UUID, queue, partition string, n int) {
	w.t.Helper()
	found, err := store.New(w.pool).Provision(w.t.Context(), tenant, []store.Pair{{Queue: queue, Partition: partition}}, store.Caps{})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.pool.Exec(w.t.Context(), `
INSERT INTO queen.log_dlq (id, tenant_id, queue, partition_id, partition_name, consumer_group, offset_, message_id,
    transaction_id, payload, error, retry_count, created_at, failed_at)
SELECT gen_random_uuid(), $1, $2::text, $3, $4, CASE WHEN i % 2 = 1 THEN 'odd' ELSE 'even' END, i, gen_random_uuid(),
    $2 || '-' || i, convert_to(format('{"n": %s}', i), 'UTF8'), format('failed at step %s of job 7', i), 2,
    clock_timestamp() - interval '1 hour', clock_timestamp() - ($5 - i + 1) * interval '1 second'
FROM generate_series(1, $5::integer) AS i`, tenant, queue, found[0].ID, partition, n); err != nil {
		w.t.Fatal(err)
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 2500)
	w.bulk("r", "p", 4)
	type purge struct {
		Success       bool
		Deleted       int
		Queue         string
		ConsumerGroup *string
		More          bool
	}
	a := w.do("DELETE", "/api/v1/dlq", "").want(t, 400)
	if decode[refusal](t, a).Error != "queue is required" {
		t.Errorf("%s", a.body)
	}
	w.do("DELETE", "/api/v1/dlq?queue=", "").want(t, 400)
	if p := decode[purge](t, w.do("DELETE", "/api/v1/dlq?queue=q&consumerGroup=odd", "").want(t, 200)); p.Deleted != 1250 || p.More || !p.Success || *p.ConsumerGroup != "odd" {
		t.Errorf("%+v", p)
	}
	if p := decode[purge](t, w.do("DELETE", "/api/v1/dlq?queue=q&partition=x", "").want(t, 200)); p.Deleted != 0 {
		t.Errorf("%+v", p)
	}
	if p := decode[purge](t, w.do("DELETE", "/api/v1/dlq?queue=q", "").want(t, 200)); p.Deleted != 1250 || p.Queue != "q" || p.ConsumerGroup != nil {
		t.Errorf("%+v", p)
	}
	if n := w.letters("").Total; n != 4 {
		t.Errorf("%d letters left", n)
	}
}

// Who looks at dead letters and deletes the same deletes what was shown and nothing else.
func TestAPurgeDeletesWhatTheSameListingShows(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "a", 1500)
	w.bulk("q", "b", 20)
	// Three minutes, two of them in the past for good.
	for minute, n := range []int{7, 5} {
		if _, err := w.pool.Exec(t.Context(), `UPDATE queen.log_dlq SET failed_at = $1::timestamptz + offset_ * interval '1 ms' WHERE id IN (
    SELECT id FROM queen.log_dlq WHERE partition_name = 'b' AND failed_at > '2026-01-01' ORDER BY offset_ LIMIT $2)`,
			time.Date(2020, 1, 1, 10, minute, 0, 0, time.UTC), n); err != nil {
			t.Fatal(err)
		}
	}
	left := 1520
	for _, c := range []struct {
		query string
		want  int
	}{
		{"from=2099-01-01T00:00:00Z", 0},
		{"to=2019-01-01T00:00:00Z", 0},
		{"partition=a&to=2020-01-01T10:01:00Z", 0},
		{"from=2020-01-01T10:01:00Z&to=2020-01-01T10:01:00Z", 5},
		{"to=2020-01-01T10:00:30Z&consumerGroup=odd", 4},
		{"limit=2&from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z", 2},
		{"partition=b", 9},
	} {
		shown := w.letters("queue=q&" + c.query).Total
		a := w.do("DELETE", "/api/v1/dlq?queue=q&"+c.query, "").want(t, 200)
		left -= c.want
		var rest int
		if err := w.pool.QueryRow(t.Context(), "SELECT count(*) FROM queen.log_dlq").Scan(&rest); err != nil {
			t.Fatal(err)
		}
		if shown != c.want || !strings.Contains(a.body, fmt.Sprintf(`"deleted":%d,`, c.want)) || rest != left {
			t.Errorf("%s: %d shown, want %d; %d left, want %d: %s", c.query, shown, c.want, rest, left, a.body)
		}
	}
	// A limit of more than a step, and then the newest are gone.
	if a := w.do("DELETE", "/api/v1/dlq?queue=q&limit=1200", "").want(t, 200); !strings.Contains(a.body, `"deleted":1200,`) || !strings.Contains(a.body, `"more":false`) {
		t.Errorf("%s", a.body)
	}
	if page := w.letters("queue=q&limit=1000"); page.Total != 300 || page.Messages[0].TransactionID != "q-300" {
		t.Errorf("%d letters left, the newest %s", page.Total, page.Messages[0].TransactionID)
	}
	for _, query := range []string{"limit=0", "limit=-1", "limit=x", "from=yesterday", "to=never", "offset=5", "cursor=c", "form=2099-01-01T00:00:00Z", "group=g", "status=x"} {
		a := w.do("DELETE", "/api/v1/dlq?queue=q&"+query, "").want(t, 400)
		if decode[refusal](t, a).Code != wire.InvalidRequest {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	if n := w.letters("queue=q&limit=1000").Total; n != 300 {
		t.Errorf("a refused purge leaves %d letters", n)
	}
}

func TestDeleteRemovesLettersOnly(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.one("q", "a")
	w.one("q", "live")
	m := w.file("q", "g", "x")
	w.file("q", "h", "x")
	path := "/api/v1/messages/" + m.PartitionID + "/"
	a := w.do("DELETE", path+"live", "").want(t, 404)
	if !strings.HasPrefix(a.body, `{"success":false,"partitionId":"`+m.PartitionID+`","transactionId":"live","message":"Message not found","error":"Message not found"`) {
		t.Errorf("%s", a.body)
	}
	a = w.do("DELETE", path+"a?consumerGroup=g", "").want(t, 200)
	if !strings.Contains(a.body, `"success":true`) || !strings.Contains(a.body, `"message":"Message deleted successfully"`) {
		t.Errorf("%s", a.body)
	}
	if left := w.letters(""); left.Total != 1 || left.Messages[0].ConsumerGroup != "h" {
		t.Errorf("%+v", left)
	}
	w.do("DELETE", path+"a", "").want(t, 200)
	w.do("DELETE", path+"a", "").want(t, 404)
	w.do("DELETE", "/api/v1/messages/nope/a", "").want(t, 404)
	if n := len(w.pop("q?autoAck=true").Messages); n != 2 {
		t.Errorf("%d messages in the log", n)
	}
}

func TestOnlyTheNextMessageIsDeadLetteredByHand(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for _, id := range []string{"a", "b", "c"} {
		w.one("q", id)
	}
	first := w.pop("q?batch=1&consumerGroup=g&subscriptionMode=all").Messages[0]
	path := "/api/v1/messages/" + first.PartitionID + "/"
	const g = `{"consumerGroup":"g","error":"poison"}`
	if a := w.do("POST", path+"a/dlq", g).want(t, 400); !strings.Contains(a.body, "leased") {
		t.Errorf("leased: %s", a.body)
	}
	w.ack("retry", "g", first)
	if a := w.do("POST", path+"b/dlq", g).want(t, 400); !strings.Contains(a.body, "offset 1") {
		t.Errorf("behind: %s", a.body)
	}
	w.do("POST", path+"a/dlq", g).want(t, 200)
	if a := w.do("POST", path+"a/dlq", g).want(t, 400); !strings.Contains(a.body, "consumed") {
		t.Errorf("consumed: %s", a.body)
	}
	w.do("POST", path+"zzz/dlq", g).want(t, 404)
	w.do("POST", path+"b/dlq", `{"consumerGroup":"stranger"}`).want(t, 404)
	w.do("POST", path+"b/dlq", `{"consumerGroup":""}`).want(t, 400)
	w.do("POST", path+"a/dlq", "").want(t, 200) // in queue mode, where nobody has read
	page := w.letters("consumerGroup=g")
	if page.Total != 1 || page.Messages[0].TransactionID != "a" || page.Messages[0].ErrorMessage != "poison" {
		t.Errorf("%+v", page)
	}
	if n := w.letters("").Total; n != 2 {
		t.Errorf("%d letters", n)
	}
	for _, query := range []string{"q?autoAck=true&consumerGroup=g", "q?autoAck=true"} {
		if got := w.pop(query).Messages; len(got) != 2 || got[0].TransactionID != "b" {
			t.Errorf("%s: %+v", query, got)
		}
	}
}

func TestSignaturesMergeFailuresOfAKind(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.bulk("q", "p", 30)
	if _, err := w.pool.Exec(t.Context(), `UPDATE queen.log_dlq SET error = 'no order ' || gen_random_uuid() WHERE offset_ > 25`); err != nil {
		t.Fatal(err)
	}
	w.do("GET", "/api/v1/analytics/dlq-signatures?queue=q&limit=1001", "").want(t, 400)
	if a := w.do("GET", "/api/v1/analytics/dlq-signatures", "").want(t, 400); decode[refusal](t, a).Error != "queue required" {
		t.Errorf("%s", a.body)
	}
	type answered struct {
		Letters, Total int
		Signatures     []struct {
			Signature      string
			Count          int
			ConsumerGroups []string
		}
	}
	r := decode[answered](t, w.do("GET", "/api/v1/analytics/dlq-signatures?queue=q", "").want(t, 200))
	if r.Letters != 30 || r.Total != 2 || r.Signatures[0].Signature != "failed at step <n> of job <n>" || r.Signatures[0].Count != 25 ||
		len(r.Signatures[0].ConsumerGroups) != 2 || r.Signatures[1].Signature != "no order <id>" || r.Signatures[1].Count != 5 {
		t.Errorf("%+v", r)
	}
	if r := decode[answered](t, w.do("GET", "/api/v1/analytics/dlq-signatures?queue=q&limit=1", "").want(t, 200)); len(r.Signatures) != 1 || r.Total != 2 {
		t.Errorf("%+v", r)
	}
}

func TestAStrangersLettersLookLikeNone(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	w := setup(t, m.tenancy)
	owner, stranger := uuid.New(), uuid.New()
	mine, theirs := m.headers(owner, wire.AccessAdmin), m.headers(stranger, wire.AccessAdmin)
	w.push(`{"items":[{"queue":"q","transactionId":"a","payload":1},{"queue":"q","transactionId":"b","payload":2}]}`, mine...)
	got := w.pop("q?batch=1", mine...).Messages[0]
	w.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"a","partitionId":%q,"status":"dlq"}`, got.PartitionID), mine...).want(t, 200)
	id := w.letters("", mine...).Messages[0].ID
	run := decode[redriveState](t, w.do("POST", "/api/v1/dlq/redrive", `{"queue":"q","rate":1,"filter":{"error":"none"}}`, mine...).want(t, 202)).ID

	at := "/api/v1/messages/" + got.PartitionID
	none := "/api/v1/messages/" + uuid.NewString()
	for _, c := range []struct{ method, path, missing, body string }{
		{"GET", at + "/a", none + "/a", ""},
		{"GET", at + "/b", none + "/b", ""},
		{"DELETE", at + "/a", none + "/a", ""},
		{"POST", at + "/a/retry", none + "/a/retry", ""},
		{"POST", at + "/b/dlq", none + "/b/dlq", ""},
		{"POST", "/api/v1/dlq/" + id + "/replay", "/api/v1/dlq/" + uuid.NewString() + "/replay", ""},
		{"POST", "/api/v1/dlq/" + id + "/replay", "/api/v1/dlq/" + uuid.NewString() + "/replay", `{"queue":"mine","partition":"p"}`},
		{"GET", "/api/v1/dlq/redrive/" + run, "/api/v1/dlq/redrive/" + uuid.NewString(), ""},
		{"DELETE", "/api/v1/dlq/redrive/" + run, "/api/v1/dlq/redrive/" + uuid.NewString(), ""},
	} {
		foreign, missing := w.do(c.method, c.path, c.body, theirs...), w.do(c.method, c.missing, c.body, theirs...)
		if foreign.status != 404 || blank(foreign.body) != blank(missing.body) {
			t.Errorf("%s %s: %d %s, a missing one: %d %s", c.method, c.path, foreign.status, foreign.body, missing.status, missing.body)
		}
	}
	if n := w.letters("queue=q", theirs...).Total; n != 0 {
		t.Errorf("a stranger sees %d letters", n)
	}
	if a := w.do("DELETE", "/api/v1/dlq?queue=q", "", theirs...).want(t, 200); !strings.Contains(a.body, `"deleted":0`) {
		t.Errorf("%s", a.body)
	}
	if a := w.do("GET", "/api/v1/dlq/redrive", "", theirs...).want(t, 200); a.body != `{"redrives":[]}` {
		t.Errorf("a stranger lists %s", a.body)
	}
	if a := w.do("POST", "/api/v1/dlq/redrive", `{"queue":"q","dryRun":true}`, theirs...).want(t, 200); !strings.Contains(a.body, `"matched":0`) {
		t.Errorf("%s", a.body)
	}
	for _, status := range []string{"", "&status=dead_letter"} {
		if p := w.browse("queue=q"+status, theirs...); len(p.Messages) != 0 {
			t.Errorf("a stranger browses %+v", p)
		}
	}
	if n := w.letters("", mine...).Total; n != 1 {
		t.Errorf("the owner has %d letters", n)
	}
}

// blank takes out what differs between any two answers.
func blank(body string) string {
	for _, part := range strings.FieldsFunc(body, func(r rune) bool { return r == '"' }) {
		if len(part) == 36 && strings.Count(part, "-") == 4 {
			body = strings.ReplaceAll(body, part, "")
		}
	}
	return body
}
