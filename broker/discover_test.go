package broker

import (
	"fmt"
	"net/url"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"
)

// discovered is what a discovery pop gave, nothing for a 204.
func (w *world) discover(query string) (p struct {
	popped
	Messages []struct {
		message
		Queue string `json:"queue"`
	} `json:"messages"`
},
) {
	w.t.Helper()
	a := w.do("GET", "/api/v1/pop?"+query, "")
	if a.status == 204 {
		return p
	}
	return decode[struct {
		popped
		Messages []struct {
			message
			Queue string `json:"queue"`
		} `json:"messages"`
	}](w.t, a.want(w.t, 200))
}

func (w *world) configure(body string) {
	w.t.Helper()
	w.do("POST", "/api/v1/configure", body).want(w.t, 200)
}

func TestDiscoveryMatchesBothValuesExactly(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for _, q := range []struct{ name, namespace, task string }{
		{"a", "shop", "mail"}, {"b", "shop", "bill"}, {"c", "shop2", "mail"}, {"d", "", ""},
	} {
		w.configure(fmt.Sprintf(`{"queue":%q,"namespace":%q,"task":%q}`, q.name, q.namespace, q.task))
		w.one(q.name, q.name+"-1")
	}
	for query, want := range map[string]string{
		"namespace=shop":            "a b",
		"task=mail":                 "a c",
		"namespace=shop&task=mail":  "a",
		"namespace=shop&task=":      "a b",
		"namespace=SHOP":            "",
		"namespace=shop&task=other": "",
	} {
		got := w.discover(query + "&partitions=0&subscriptionMode=all&consumerGroup=" + url.QueryEscape(query))
		var names []string
		for _, m := range got.Messages {
			names = append(names, m.Queue)
		}
		sort.Strings(names)
		if strings.Join(names, " ") != want || (want != "" && (got.Queue != "" || got.PartitionsClaimed != len(names))) {
			t.Errorf("%s: %v, want %s: %+v", query, names, want, got)
		}
	}
	a := w.do("GET", "/api/v1/pop?batch=3", "").want(t, 400)
	if body := decode[map[string]any](t, a); body["success"] != false || body["error"] != "namespace or task is required" || fmt.Sprint(body["messages"]) != "[]" {
		t.Errorf("neither: %s", a.body)
	}
}

// TestDiscoveryLeasesByEachQueue: one pop over two queues, each partition under the lease time and the delay of its own
// queue, acknowledged like any other.
func TestDiscoveryLeasesByEachQueue(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.configure(`{"queue":"short","namespace":"n","options":{"leaseTime":20}}`)
	w.configure(`{"queue":"long","namespace":"n","options":{"leaseTime":200}}`)
	w.configure(`{"queue":"late","namespace":"n","options":{"delayedProcessing":3600}}`)
	for _, q := range []string{"short", "long", "late"} {
		w.one(q, q)
	}
	got := w.discover("namespace=n&partitions=0&batch=10")
	if len(got.Messages) != 2 {
		t.Fatalf("%+v", got)
	}
	for _, m := range got.Messages {
		var left float64
		if err := w.pool.QueryRow(t.Context(), `SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM queen.log_consumers k
			JOIN queen.log_partitions p ON p.id = k.partition_id WHERE p.uid = $1`, m.PartitionID).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if want := map[string]float64{"short": 20, "long": 200}[m.Queue]; left > want || left < want-15 {
			t.Errorf("%s: the lease has %v s left, want %v", m.Queue, left, want)
		}
		if r := w.ack("completed", "", m.message)[0]; !r.Success || !r.LeaseReleased {
			t.Errorf("ack: %+v", r)
		}
	}
	if again := w.discover("namespace=n&partitions=0"); len(again.Messages) != 0 {
		t.Errorf("delivered again: %+v", again)
	}
	// A queue-form pop and a discovery pop share the group's cursor.
	w.one("short", "second")
	if p := w.pop("short"); len(p.Messages) != 1 || p.Messages[0].TransactionID != "second" {
		t.Errorf("queue form: %+v", p)
	}
	if again := w.discover("namespace=n&partitions=0"); len(again.Messages) != 0 {
		t.Errorf("leased by the queue form, delivered by discovery: %+v", again)
	}
}

// TestParkedDiscoveryIsWoken: by a push here to a queue it knows, by a push to a queue that appears, and by pushes of
// another broker.
func TestParkedDiscoveryIsWoken(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	other := serve(t, w.pool, nil)
	w.configure(`{"queue":"known","namespace":"n"}`)
	const query = "namespace=n&consumerGroup=g&autoAck=true&wait=true&timeout=25000"
	for name, push := range map[string]func(){
		"a known queue":                     func() { w.one("known", "k1") },
		"a queue that appears":              func() { w.one("n.appears", "a1") },
		"a known queue, elsewhere":          func() { other.one("known", "k2") },
		"a queue that appears elsewhere":    func() { other.one("n.elsewhere", "e1") },
		"a queue that is given its scope":   func() { w.configure(`{"queue":"moved","namespace":"n"}`); w.one("moved", "m1") },
		"a partition that appears in known": func() { w.push(`{"items":[{"queue":"known","partition":"new","payload":1}]}`) },
	} {
		before := w.b.park.Waiting()
		done := make(chan []string, 1)
		go func() {
			var ids []string
			for _, m := range w.discover(query).Messages {
				ids = append(ids, m.TransactionID)
			}
			done <- ids
		}()
		w.until("parked", func() bool { return w.b.park.Waiting() == before+1 })
		push()
		select {
		case ids := <-done:
			if len(ids) != 1 {
				t.Errorf("%s: %v", name, ids)
			}
		case <-time.After(patience):
			t.Errorf("%s wakes nobody", name)
		}
	}
}

// TestDiscoverySeedsJoiningQueuesFromTheSubscription: a group that wants what is new gets what is pushed to a queue
// that joins, even before it is noticed, and nothing that is older than the subscription.
func TestDiscoverySeedsJoiningQueuesFromTheSubscription(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.configure(`{"queue":"old","namespace":"n"}`)
	w.one("old", "before")
	w.one("outside", "before")
	// A partition counts as new up to five seconds before the subscription: clocks of two servers may differ.
	if _, err := w.pool.Exec(t.Context(), "UPDATE queen.log_partitions SET created_at = created_at - interval '1 minute'"); err != nil {
		t.Fatal(err)
	}
	if got := w.discover("namespace=n&consumerGroup=g&subscriptionMode=new"); len(got.Messages) != 0 {
		t.Fatalf("%+v", got)
	}
	w.one("outside", "after")
	w.configure(`{"queue":"outside","namespace":"n"}`)
	w.one("n.fresh", "fresh")
	w.one("old", "after")
	var ids []string
	w.until("all three", func() bool {
		for _, m := range w.discover("namespace=n&consumerGroup=g&partitions=0").Messages {
			ids = append(ids, m.Queue+" "+m.TransactionID)
		}
		return len(ids) >= 3
	})
	slices.Sort(ids)
	if want := "[n.fresh fresh old after outside after]"; fmt.Sprint(ids) != want {
		t.Errorf("%v, want %s", ids, want)
	}
}
