package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/queengate/queengate/wire"
)

// W15: who may not consume, there, reads every payload by listing messages. Of each route that a read key may use the test
// finds out by itself whether it shows payloads: asked with a key that may see them, it does.
func TestReadingShowsPayloadsToWhoMaySeeThem(t *testing.T) {
	t.Parallel()
	const marker = "what-nobody-else-shall-read"
	c := shared(t).newCluster(t, "")
	sees := map[string]bool{ // by the scopes of a key
		"read": false, "admin": false, "produce read": false, "read:payload": true, "consume read": true, "admin read:payload": true,
	}
	keys := map[string]string{}
	for scopes := range sees {
		keys[scopes] = c.newKey(t, c.id, strings.Fields(scopes))
	}
	c.settle(t)

	c.push(t, m{"items": []m{
		{"queue": "q", "partition": "p", "transactionId": "t-0", "payload": m{"secret": marker}},
		{"queue": "q", "partition": "p", "transactionId": "t-1", "payload": marker},
	}})
	got := c.pop(t, "q", "consumerGroup=g&subscriptionMode=all&batch=1")
	if len(got.Messages) != 1 {
		t.Fatalf("popped %+v", got)
	}
	msg := got.Messages[0]
	ask := func(method, path string, body any, k string, status int) string {
		t.Helper()
		r := c.call(t, method, path, body, key(k))
		if r.status != status {
			t.Fatalf("%s %s: %d %s", method, path, r.status, r.body)
		}
		return string(r.body)
	}
	ask("POST", "/api/v1/traces", m{
		"transactionId": msg.TransactionID, "partitionId": msg.PartitionID, "data": m{"seen": marker}, "traceNames": []string{"n"},
	}, c.full, 201)
	if r := c.ack(t, []m{ackOf(msg, "dlq")}, "g"); !r[0].DLQ {
		t.Fatalf("buried %+v", r)
	}
	redrive := decode[struct{ ID string }](t, []byte(ask("POST", "/api/v1/dlq/redrive", m{"queue": "q", "partition": "none"}, c.full, 202)))
	params := map[string]string{
		":queue": "q", ":partition": msg.PartitionID, ":transaction": msg.TransactionID, ":group": "g", ":name": "n", ":id": redrive.ID,
	}
	queries := map[wire.Op][]string{wire.OpListMessages: {"", "?status=dead_letter", "?queue=q&partition=p"}, wire.OpDeadLetterSignatures: {"?queue=q"}}

	shows := map[wire.Op]bool{}
	for i := range wire.Routes {
		r := &wire.Routes[i]
		if r.Class != wire.ClassRead {
			continue
		}
		segments := strings.Split(r.Pattern, "/")
		for i, s := range segments {
			if v, known := params[s]; known {
				segments[i] = v
			} else if strings.HasPrefix(s, ":") {
				t.Fatalf("%s %s: the test knows no value for %s", r.Method, r.Pattern, s)
			}
		}
		asked := queries[r.Op]
		if asked == nil {
			asked = []string{""}
		}
		for _, query := range asked {
			path := strings.Join(segments, "/") + query
			shown := strings.Contains(ask(r.Method, path, nil, c.full, 200), marker)
			shows[r.Op] = shows[r.Op] || shown
			for scopes, k := range keys {
				body := ask(r.Method, path, nil, k, 200)
				if got, want := strings.Contains(body, marker), shown && sees[scopes]; got != want {
					t.Errorf("%s %s with %s shows payloads: %v, want %v: %s", r.Method, path, scopes, got, want, body)
				}
				if got, want := strings.Contains(body, `ithheld":true`), shown && !sees[scopes]; got != want {
					t.Errorf("%s %s with %s says that payloads are withheld: %v, want %v: %s", r.Method, path, scopes, got, want, body)
				}
			}
		}
	}
	want := []wire.Op{wire.OpListMessages, wire.OpGetMessage, wire.OpListDeadLetters, wire.OpTracesByName, wire.OpTracesOfMessage}
	maps.DeleteFunc(shows, func(_ wire.Op, shown bool) bool { return !shown })
	if found := slices.Sorted(maps.Keys(shows)); !slices.Equal(found, slices.Sorted(slices.Values(want))) {
		t.Errorf("payloads are shown by the operations %v, and were expected of %v", found, want)
	}
}
