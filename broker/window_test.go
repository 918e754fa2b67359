package broker

import "testing"

// TestAFullWindowReleasesAParkedPop: windowBuffer holds a partition back, but not beyond a full batch; what a parked
// poll is woken by is the message that fills it.
func TestAFullWindowReleasesAParkedPop(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *Config) { c.WindowFull = 5 })
	w.do("POST", "/api/v1/configure", `{"queue":"q","namespace":"n","options":{"windowBuffer":3600}}`).want(t, 200)
	for _, txn := range []string{"a", "b", "c", "d"} {
		w.one("q", txn)
	}
	const group = "consumerGroup=g&subscriptionMode=all"
	if got := w.pop("q?" + group); got.Messages != nil {
		t.Fatalf("four of five are delivered: %+v", got)
	}
	type result struct {
		how string
		got popped
	}
	results := make(chan result, 2)
	for how, path := range map[string]string{"of the queue": "/queue/q?" + group, "by namespace": "?namespace=n&consumerGroup=h&subscriptionMode=all"} {
		go func() {
			a := w.do("GET", "/api/v1/pop"+path+"&wait=true&timeout=25000", "")
			if a.status == 204 {
				results <- result{how: how}
				return
			}
			results <- result{how, decode[popped](t, a)}
		}()
	}
	w.until("both wait", func() bool { return w.b.park.Waiting() == 2 })
	w.one("q", "e")
	for range 2 {
		if r := <-results; len(r.got.Messages) != 5 {
			t.Errorf("%s: %d messages, want 5", r.how, len(r.got.Messages))
		}
	}
}
