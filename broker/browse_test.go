package broker

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"
)

type browsedMessage struct {
	ID             string
	TransactionID  string
	TxnHash        string
	PartitionID    string
	QueuePath      string
	Queue          string
	Partition      string
	Namespace      string
	Task           string
	Status         string
	QueueStatus    *string
	BusStatus      struct{ ConsumedBy, TotalGroups int }
	Offset         int64
	Segment        struct{ Seq, FrameIdx int64 }
	CreatedAt      time.Time
	LeaseExpiresAt *time.Time
	Data           json.RawMessage
	Payload        json.RawMessage
	ErrorMessage   *string
	RetryCount     int
	ConsumerGroups []struct {
		Name, Group string
		Consumed    bool
	}
	QueueConfig *struct{ LeaseTime, RetryLimit, RetryDelay, TTL, Priority int }
}

type browsePage struct {
	Messages []browsedMessage
	Mode     struct {
		HasQueueMode   bool
		BusGroupsCount int
		Type           string
	}
	Total      int
	Partial    bool
	NextCursor *string
}

func (w *world) browse(query string, headers ...string) browsePage {
	w.t.Helper()
	return decode[browsePage](w.t, w.do("GET", "/api/v1/messages?"+query, "", headers...).want(w.t, 200))
}

func txnsOf(p browsePage) string {
	var all []string
	for _, m := range p.Messages {
		all = append(all, m.TransactionID)
	}
	return strings.Join(all, " ")
}

func TestBrowsingTellsStatusesByTheCursors(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	var items []string
	for i := range 6 {
		items = append(items, fmt.Sprintf(`{"queue":"shop.orders","partition":"p","transactionId":"t%d","payload":{"i":%d}}`, i, i))
	}
	w.push(`{"items":[` + strings.Join(items, ",") + `]}`)
	if p := w.browse("queue=shop.orders"); txnsOf(p) != "t5 t4 t3 t2 t1 t0" || p.Mode.Type != "none" || p.Total != 6 || p.Messages[0].Status != "pending" || p.NextCursor != nil {
		t.Fatalf("%+v", p)
	}
	// Queue mode: one done, two out.
	done := w.pop("shop.orders?batch=1").Messages
	w.ack("completed", "__QUEUE_MODE__", done...)
	w.pop("shop.orders?batch=2")
	p := w.browse("queue=shop.orders&partition=p")
	got := map[string]string{}
	for _, m := range p.Messages {
		got[m.TransactionID] = m.Status
		if m.Status == "processing" && m.LeaseExpiresAt == nil || m.Status != *m.QueueStatus {
			t.Errorf("%+v", m)
		}
	}
	if fmt.Sprint(got) != "map[t0:completed t1:processing t2:processing t3:pending t4:pending t5:pending]" || p.Mode.Type != "queue" {
		t.Errorf("queue mode: %v %+v", got, p.Mode)
	}
	for status, want := range map[string]string{"pending": "t5 t4 t3", "processing": "t2 t1", "completed": "t0", "dead_letter": ""} {
		if p := w.browse("queue=shop.orders&status=" + status); txnsOf(p) != want {
			t.Errorf("%s: %s", status, txnsOf(p))
		}
	}
	// Named groups decide: g is behind h; what g gave up on is dead.
	w.file("shop.orders", "g", "boom")
	got1 := w.pop("shop.orders?batch=4&consumerGroup=h&subscriptionMode=all").Messages
	w.ack("completed", "h", got1...)
	p = w.browse("ns=shop&task=orders")
	got = map[string]string{}
	for _, m := range p.Messages {
		got[m.TransactionID] = fmt.Sprint(m.Status, m.BusStatus.ConsumedBy, "/", m.BusStatus.TotalGroups)
	}
	if want := "map[t0:dead_letter2/2 t1:pending1/2 t2:pending1/2 t3:pending1/2 t4:pending0/2 t5:pending0/2]"; fmt.Sprint(got) != want ||
		p.Mode.Type != "hybrid" || p.Mode.BusGroupsCount != 2 || !p.Mode.HasQueueMode {
		t.Errorf("named groups: %v %+v", got, p.Mode)
	}
	if p := w.browse("queue=shop.orders&status=dead_letter"); txnsOf(p) != "t0" || p.Messages[0].Status != "dead_letter" || string(p.Messages[0].Data) != `{"i":0}` || p.Messages[0].Namespace != "shop" {
		t.Errorf("dead: %+v", p)
	}
	for query, want := range map[string]string{
		"queue=other": "", "namespace=other": "", "task=other": "", "partition=other": "", "status=completed": "",
		"queue=shop.orders&limit=2": "t5 t4", "queue=shop.orders&limit=2&offset=3": "t2 t1", "to=2020-01-01T00:00:00Z": "",
		"from=2999-01-01T00:00:00Z": "", "queue=shop.orders&from=2020-01-01T00:00:00Z&limit=1": "t5",
		"namespace=other&status=dead_letter": "",
	} {
		if p := w.browse(query); txnsOf(p) != want {
			t.Errorf("%s: %q, want %q", query, txnsOf(p), want)
		}
	}
	for _, query := range []string{"status=lost", "limit=0", "limit=1001", "from=now", "cursor=x", "cursor=1_2_3", "status=dead_letter&cursor=x", "offset=-1"} {
		w.do("GET", "/api/v1/messages?"+query, "").want(t, 400)
	}
	m := p.Messages[0]
	if m.QueuePath != "shop.orders/p" || m.Offset != 5 || m.Segment.Seq+m.Segment.FrameIdx != 5 || len(m.TxnHash) != 32 || string(m.Payload) != string(m.Data) || string(m.Data) != `{"i":5}` {
		t.Errorf("%+v", m)
	}
}

func TestBrowsingMergesPartitionsNewestFirst(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	const rounds, lanes = 30, 5
	for i := range rounds {
		for k := range lanes {
			w.push(fmt.Sprintf(`{"items":[{"queue":"q","partition":"p%d","transactionId":"%03d","payload":1},{"queue":"q","partition":"p%d","payload":1}]}`, k, i*lanes+k, k))
		}
	}
	const all = rounds * lanes * 2
	seen := map[string]bool{}
	var last browsedMessage
	cursor, pages := "", 0
	for {
		p := w.browse("queue=q&limit=37&cursor=" + url.QueryEscape(cursor))
		for _, m := range p.Messages {
			if seen[m.ID] {
				t.Fatalf("%s twice", m.ID)
			}
			seen[m.ID] = true
			if last.ID != "" && m.CreatedAt.After(last.CreatedAt) {
				t.Fatalf("%v after %v", m.CreatedAt, last.CreatedAt)
			}
			last = m
		}
		pages++
		if p.NextCursor == nil || pages > all {
			break
		}
		cursor = *p.NextCursor
	}
	if len(seen) != all {
		t.Errorf("%d messages by cursor, want %d", len(seen), all)
	}
	byOffset := map[string]bool{}
	for skip := 0; skip < all; skip += 100 {
		for _, m := range w.browse(fmt.Sprintf("queue=q&limit=100&offset=%d", skip)).Messages {
			byOffset[m.ID] = true
		}
	}
	if len(byOffset) != all {
		t.Errorf("%d messages by offset, want %d", len(byOffset), all)
	}
	// A window in the past is found without walking what came later.
	at, err := time.Parse(time.RFC3339Nano, last.CreatedAt.Format(time.RFC3339Nano))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool.Exec(t.Context(), `UPDATE queen.log_segments SET created_at = created_at - interval '1 day' WHERE base_offset < 10`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool.Exec(t.Context(), `UPDATE queen.log_partitions SET oldest_live_at = oldest_live_at - interval '1 day'`); err != nil {
		t.Fatal(err)
	}
	window := "from=" + at.Add(-25*time.Hour).Format(time.RFC3339) + "&to=" + at.Add(-23*time.Hour).Format(time.RFC3339)
	if n := len(w.browse("queue=q&limit=1000&" + window).Messages); n != lanes*10 {
		t.Errorf("%d messages in the window, want %d", n, lanes*10)
	}
	if n := len(w.browse("queue=q&limit=1000").Messages); n != all-lanes*10 {
		t.Errorf("%d messages in the last hour, want %d", n, all-lanes*10)
	}
}

func TestAMessageIsFoundByItsTransactionID(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.do("POST", "/api/v1/configure", `{"queue":"q","options":{"leaseTime":77,"retryLimit":2,"priority":4,"dedupWindowSeconds":0}}`).want(t, 200)
	w.push(`{"items":[{"queue":"q","transactionId":"x","payload":0},{"queue":"q","transactionId":"a b/ü","payload":{"v":1.0}},{"queue":"q","transactionId":"y","payload":0}]}`)
	w.push(`{"items":[{"queue":"q","transactionId":"a b/ü","payload":"again"}]}`) // not deduplicated here: the first one counts
	pid := w.browse("queue=q").Messages[0].PartitionID
	get := func(txn string) browsedMessage {
		t.Helper()
		return decode[browsedMessage](t, w.do("GET", "/api/v1/messages/"+pid+"/"+url.PathEscape(txn), "").want(t, 200))
	}
	m := get("a b/ü")
	if m.Offset != 1 || string(m.Payload) != `{"v":1.0}` || m.Status != "pending" || m.ErrorMessage != nil || m.QueueConfig.LeaseTime != 77 ||
		m.QueueConfig.RetryLimit != 2 || m.QueueConfig.Priority != 4 || len(m.ConsumerGroups) != 0 || m.Segment.Seq != 0 || m.Segment.FrameIdx != 1 {
		t.Errorf("%+v", m)
	}
	w.file("q", "g", "bad x")
	if m := get("x"); m.Status != "dead_letter" || *m.ErrorMessage != "bad x" || len(m.ConsumerGroups) != 1 || m.ConsumerGroups[0].Name != "g" || !m.ConsumerGroups[0].Consumed {
		t.Errorf("%+v", m)
	}
	// Retention takes the log; the letter outlives it.
	for _, sql := range []string{
		"DELETE FROM queen.log_segments", "DELETE FROM queen.log_txns",
		"UPDATE queen.log_partitions SET log_start = last_offset + 1, txns_start = last_offset + 1, oldest_live_at = NULL",
	} {
		if _, err := w.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if m := get("x"); m.Status != "dead_letter" || string(m.Data) != "0" || m.Offset != 0 {
		t.Errorf("%+v", m)
	}
	for _, path := range []string{pid + "/y", pid + "/zzz", "nope/x", "00000000-0000-0000-0000-000000000009/x"} {
		a := w.do("GET", "/api/v1/messages/"+path, "").want(t, 404)
		if decode[refusal](t, a).Error != "Message not found" {
			t.Errorf("%s: %s", path, a.body)
		}
	}
}
