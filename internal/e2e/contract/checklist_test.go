package contract

import (
	"testing"

	"github.com/queengate/queengate/broker"
)

// checklist is the compatibility checklist of the broker's HTTP contract (spec/broker-http.md 7), line by line and in its
// order. Where design.md decides otherwise, the test says so and asserts what it decides.
var checklist = []struct {
	line string
	test func(*testing.T, *service)
}{
	{"push of nothing is 201 [], without payload 400 JSON, null payload pops as data:null", testPushEdges},
	{"a second push of a transactionId is a duplicate with the first's message_id, in one request the first wins", testPushDuplicates},
	{"results stand in the order of the items of three queues, keys exactly snake and camel", testPushResultOrder},
	{"Python-style POST without body and Content-Type to extend, retry, stats refresh and seek", testBodylessPosts},
	{"pop of nothing is 204 without Content-Length and leaves the connection usable", testEmptyPop},
	{"a waiting pop is answered within its time and woken by a push", testWaitingPop},
	{"one partition is leased to one consumer, two partitions share one leaseId and the batch", testLeases},
	{"names with spaces, % and unicode, raw and encoded, on all three pop forms", testNames},
	{"popped ids ascend in offset order across 1000 pushes, createdAt does not fall and is RFC 3339 in Z", testIDsAscend},
	{"ack of one is an array of one with seven keys, of a batch an array as long as the request", testAckShape},
	{"completing the last completes the batch, failing the middle stops the cursor just below", testAckCursor},
	{"the fourth failed with retryLimit 3 is a dead letter with the nack's text and retryCount 3", testRetriesExhausted},
	{"retry and expiry twenty times never dead-letter, deliveryAttempt rises to 21", testUnchargedRedelivery},
	{"ack under a foreign or expired leaseId fails within a 200, without leaseId it succeeds", testAckLease},
	{"consumerGroup null is __QUEUE_MODE__", testNullGroup},
	{"extending an unknown lease is 200 success:false with three nulls, a known one three equal times, never shorter", testExtend},
	{"transactions: duplicates undo all, requiredLeases alone, Go and JS bodies, riders are refused", testTransactions},
	{"configure replaces unless mode is merge, null resets one, the reply has no error", testConfigure},
	{"DELETE of a missing queue is 200 deleted:false without error", testDeleteMissingQueue},
	{"a new group sees what is new, a later partition from its start, all reads history, queue mode always all", testSubscriptions},
	{"consumer-groups and lagging are bare arrays, lagging is snake_case and not shadowed by a group", testGroupLists},
	{"DELETE of a group is 200 with a body", testDeleteGroup},
	{"KV is not part of this server: its routes are 404, which SDKs read as unsupported", testNoKV},
	{"streams are not part of this server: their routes are 404", testNoStreams},
	{"roles: write-only pushes and does not pop, read-only does not pop, rw is no admin", testRoles},
	{"an unknown route is 404 no_such_route, /health is 200 or 503", testUnknownRouteAndHealth},
	{"a body of 64 MiB and one byte is 413, invalid UTF-8 is 400", testBodyBounds},
	{"unknown JSON keys are ignored everywhere", testUnknownKeys},
}

func TestChecklist(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	for _, c := range checklist {
		t.Run(c.line, func(t *testing.T) {
			t.Parallel()
			c.test(t, s.of(t))
		})
	}
}

// all makes groups read history from the start, as the suites of the 0.15 generation expect.
func all(c *broker.Config) { c.SubscriptionMode = "all" }
