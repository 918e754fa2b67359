package proxy

import (
	"net/http"
	"strconv"
	"testing"
)

// A trace event is scanned like every body that a broker reads, and passes as it was sent.
func TestATraceEventIsScannedAndPasses(t *testing.T) {
	t.Parallel()
	w := setup(t, options{})
	post := func(body string) reply {
		return w.ask(w.head("POST", "/api/v1/traces", "Content-Length: "+strconv.Itoa(len(body))) + body)
	}
	if r := post(`{"transactionId":"t","transactionId":"u","partitionId":"p","data":1}`); r.StatusCode != http.StatusBadRequest {
		t.Errorf("two transactions: %d %s", r.StatusCode, r.body)
	}
	event := `{"transactionId":"t", "partitionId":"p", "data":{"a":1}}`
	if r := post(event); r.StatusCode >= 300 {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if got := await(t, w.broker.seen); got.target != "/api/v1/traces" || got.body != event {
		t.Errorf("the broker got %+v", got)
	}
}
