package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// conflated is the part of a pop answer that concerns conflation and autopilot.
type conflated struct {
	popped
	Conflation         bool `json:"conflation"`
	ConflationConflict bool `json:"conflationConflict"`
	Autopilot          *struct {
		Partitions int `json:"partitions"`
		Batch      int `json:"batch"`
		WaitMs     int `json:"waitMs"`
	} `json:"autopilot"`
}

// many pushes n messages p-0, p-1, … to a partition.
func (w *world) many(queue, partition string, n int) {
	w.t.Helper()
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf(`{"queue":%q,"partition":%q,"transactionId":"%s-%d","payload":%d}`, queue, partition, partition, i, i)
	}
	w.push(`{"items":[` + strings.Join(items, ",") + `]}`)
}

func (w *world) asked(query string) conflated {
	w.t.Helper()
	return decode[conflated](w.t, w.do("GET", "/api/v1/pop/queue/"+query, "").want(w.t, 200))
}

func TestConflationGivesTheNewestOfEachPartition(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.many("q", "a", 5)
	w.many("q", "b", 1)
	got := w.asked("q?consumerGroup=g&conflation=true&batch=10&subscriptionMode=all")
	if !got.Conflation || got.ConflationConflict || got.PartitionsClaimed != 2 || len(got.Messages) != 2 {
		t.Fatalf("%+v", got)
	}
	for _, m := range got.Messages {
		want := map[string]struct{ id, conflated string }{"a": {"a-4", `"conflated":4`}, "b": {"b-0", ""}}[m.Partition]
		if m.TransactionID != want.id || m.LeaseID != got.LeaseID {
			t.Errorf("%+v", m)
		}
		a := w.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"consumerGroup":"g"}`, m.TransactionID, m.PartitionID, m.LeaseID))
		if !strings.Contains(a.body, `"success":true`) || !strings.Contains(a.body, `"leaseReleased":true`) || strings.Contains(a.body, `"conflated"`) != (want.conflated != "") || !strings.Contains(a.body, want.conflated) {
			t.Errorf("ack of %s: %s", m.TransactionID, a.body)
		}
	}
	empty := w.asked("q?consumerGroup=g&conflation=true")
	if !empty.Conflation || empty.ConflationConflict || len(empty.Messages) != 0 || !strings.Contains(w.do("GET", "/api/v1/pop/queue/q?consumerGroup=g&conflation=true", "").body, `"messages":[]`) {
		t.Errorf("empty: %+v", empty)
	}
	// The property is the group's: a pop that does not ask gets it too, and is told.
	w.push(`{"items":[{"queue":"q","partition":"a","transactionId":"x","payload":1},{"queue":"q","partition":"a","transactionId":"y","payload":1}]}`)
	if got := w.asked("q?consumerGroup=g"); !got.Conflation || len(got.Messages) != 1 || got.Messages[0].TransactionID != "y" {
		t.Errorf("without asking: %+v", got)
	}
}

func TestConflationIsFixedByTheFirstRegistration(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	w.many("q", "a", 3)
	w.pop("q?consumerGroup=g&subscriptionMode=all&batch=1")
	other := serve(t, w.pool, nil)
	w.many("q", "b", 3)
	for name, w := range map[string]*world{"here": w, "on another broker": other} {
		got := w.asked("q?consumerGroup=g&conflation=true&leaseSeconds=1")
		if !got.Conflation || !got.ConflationConflict {
			t.Errorf("%s: %+v", name, got)
		}
	}
	got := w.asked("q?consumerGroup=h&conflation=true&subscriptionMode=all")
	if !got.Conflation || got.ConflationConflict || len(got.Messages) != 2 {
		t.Errorf("another group: %+v", got)
	}
}

func TestConflationRefuses(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for query, says := range map[string]string{
		"/pop/queue/q?conflation=true":                                  "conflation requires consumerGroup: ",
		"/pop/queue/q?conflation=true&consumerGroup=g&autoAck=true":     "conflation cannot be combined with autoAck: ",
		"/pop/queue/q/partition/p?conflation=true&consumerGroup=":       "conflation requires consumerGroup: ",
		"/pop?namespace=n&conflation=true&consumerGroup=&wait=true":     "conflation requires consumerGroup: ",
		"/pop?namespace=n&conflation=true&consumerGroup=__QUEUE_MODE__": "conflation requires consumerGroup: ",
	} {
		a := w.do("GET", "/api/v1"+query, "").want(t, 400)
		body := decode[map[string]any](t, a)
		if text, _ := body["error"].(string); body["success"] != false || !strings.HasPrefix(text, says) || fmt.Sprint(body["messages"]) != "[]" {
			t.Errorf("%s: %s", query, a.body)
		}
	}
}

// TestConflatingRepliesAreBounded: 64 messages at most, whatever is asked.
func TestConflatingRepliesAreBounded(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	items := make([]string, 100)
	for i := range items {
		items[i] = fmt.Sprintf(`{"queue":"q","partition":"p%d","payload":1}`, i)
	}
	w.push(`{"items":[` + strings.Join(items, ",") + `]}`)
	for query, want := range map[string]int{"batch=500": 64, "batch=3": 3, "batch=500&partitions=2": 2, "partitions=0&batch=80": 64} {
		if got := w.asked("q?conflation=true&subscriptionMode=all&consumerGroup=" + strings.Map(func(r rune) rune {
			if r == '&' || r == '=' {
				return '-'
			}
			return r
		}, query) + "&" + query); len(got.Messages) != want {
			t.Errorf("%s: %d messages, want %d", query, len(got.Messages), want)
		}
	}
}

func TestAutopilotChoosesWhatIsNotNamed(t *testing.T) {
	t.Parallel()
	w := setup(t, nil)
	for p := range 8 {
		w.many("q", fmt.Sprint("p", p), 5)
	}
	first := w.asked("q?autopilot=true&consumerGroup=g&subscriptionMode=all")
	if first.Autopilot == nil || first.Autopilot.Batch != 100 || first.Autopilot.Partitions != 1 || len(first.Messages) != 5 {
		t.Fatalf("without experience: %+v", first.Autopilot)
	}
	named := w.asked("q?autopilot=true&consumerGroup=g&batch=7&partitions=2")
	if named.Autopilot == nil || named.Autopilot.Batch != 7 || named.Autopilot.Partitions != 2 || len(named.Messages) != 7 {
		t.Errorf("what the caller names is left alone: %+v, %d messages", named.Autopilot, len(named.Messages))
	}
	for name, query := range map[string]string{
		"group-less": "q?autopilot=true", "under conflation": "q?autopilot=true&conflation=true&consumerGroup=c&subscriptionMode=all",
		"not asked for": "q?consumerGroup=d&subscriptionMode=all", "of one partition": "q/partition/p7?autopilot=true&consumerGroup=e&subscriptionMode=all",
	} {
		if got := w.asked(query); got.Autopilot != nil {
			t.Errorf("%s: %+v", name, got.Autopilot)
		}
	}
	// Claims of one message each teach that a batch needs many partitions.
	for range (Config{}).withDefaults().AutopilotDwellPops {
		w.pop("q?consumerGroup=small&subscriptionMode=all&batch=1&autoAck=true")
		w.many("q", "p0", 1)
	}
	for p := range 40 {
		w.many("q", fmt.Sprint("n", p), 1)
	}
	got := w.asked("q?autopilot=true&consumerGroup=small")
	if got.Autopilot == nil || got.Autopilot.Partitions < 8 || len(got.Messages) < 8 {
		t.Errorf("with experience: %+v, %d messages", got.Autopilot, len(got.Messages))
	}
}

func TestTheAutopilotObeysItsSettings(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]struct {
		chosen   int // the batch; 0: no choice is shown
		messages int
		choices  float64
	}{
		"on":     {3, 3, 1},
		"shadow": {0, 5, 1},
		"off":    {0, 5, 0},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := setup(t, func(c *Config) { c.Autopilot, c.AutopilotBatch = mode, 3 })
			w.many("q", "p", 5)
			got := w.asked("q?autopilot=true&consumerGroup=g&subscriptionMode=all")
			chosen := 0
			if got.Autopilot != nil {
				chosen = got.Autopilot.Batch
			}
			if chosen != want.chosen || len(got.Messages) != want.messages {
				t.Errorf("got %d messages and a batch of %d, want %d and %d", len(got.Messages), chosen, want.messages, want.chosen)
			}
			if got := testutil.ToFloat64(w.b.metrics.choices); got != want.choices {
				t.Errorf("counted choices: got %v, want %v", got, want.choices)
			}
		})
	}
}

func TestAWaitingPopWithoutALimitWaitsAsConfigured(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.PopTimeout = time.Millisecond })
	w.client.Timeout = 20 * time.Second // less than the limit that is not configured
	w.do("GET", "/api/v1/pop/queue/q?wait=true&consumerGroup=g", "").want(t, 204)
}
