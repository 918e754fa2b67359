package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func pushOf(queue, partition, txn, payload string) TransactionPush {
	return TransactionPush{PushItem: PushItem{Queue: queue, Partition: partition, TransactionID: optional(txn), Payload: []byte(payload)}}
}

func TestScanTransaction(t *testing.T) {
	t.Parallel()
	const trace = "0198f000-0000-7000-8000-0000000000aa"
	ops := func(s string) string { return `{"operations":[` + s + `]}` }
	traced := pushOf("q", "Default", "", "1")
	traced.TraceID = trace
	tests := map[string]struct {
		body string
		want Transaction
	}{
		"the list form": {
			ops(`{"type":"push","items":[{"queue":"q","payload":{"a": 1}},{"queue":"r","partition":"p","transactionId":"t","payload":null}]}`),
			Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", `{"a": 1}`), pushOf("r", "p", "t", "null")}},
		},
		"the flat form":                                 {ops(`{"type":"push","queue":"q","payload":1}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "1")}}},
		"the type may come last":                        {ops(`{"queue":"q","payload":{"type":"ack"},"type":"push"}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", `{"type":"ack"}`)}}},
		"data is another name of payload":               {ops(`{"type":"push","items":[{"queue":"q","data":[1]}]},{"type":"push","queue":"q","data":2}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "[1]"), pushOf("q", "Default", "", "2")}}},
		"of payload and data the payload counts":        {ops(`{"type":"push","queue":"q","payload":1,"data":2}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "1")}}},
		"an absent payload is the empty object":         {ops(`{"type":"push","queue":"q"}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "{}")}}},
		"beside items the fields mean nothing":          {ops(`{"type":"push","queue":"a","payload":9,"items":[{"queue":"q","payload":1}],"partition":"x"}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "1")}}},
		"items null is the flat form":                   {ops(`{"type":"push","items":null,"queue":"q","payload":1}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "1")}}},
		"an empty list of items":                        {ops(`{"type":"push","items":[]}`), Transaction{}},
		"an empty transaction id is absent":             {ops(`{"type":"push","queue":"q","payload":1,"transactionId":""}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "1")}}},
		"a UUID trace is kept in lower case":            {ops(`{"type":"push","queue":"q","payload":1,"traceId":"` + strings.ToUpper(trace) + `"}`), Transaction{Pushes: []TransactionPush{traced}}},
		"any other trace is dropped":                    {ops(`{"type":"push","items":[{"queue":"q","payload":1,"traceId":"x"},{"queue":"q","payload":1,"traceId":{"a":1}},{"queue":"q","payload":1,"traceId":"{` + trace + `}"}]}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "1"), pushOf("q", "Default", "", "1"), pushOf("q", "Default", "", "1")}}},
		"riders that are null or empty":                 {`{"kv":null,"timers":[],"operations":[{"type":"push","items":[]}],"requiredLeases":null}`, Transaction{}},
		"leases that are null or empty name none":       {`{"operations":[{"type":"push","items":[]}],"requiredLeases":[null,"","l"]}`, Transaction{Leases: []string{"l"}}},
		"unknown keys are skipped, also in an ack":      {`{"x":{},"operations":[{"type":"ack","transactionId":"t","partitionId":"p","queue":5,"items":{},"payload":[]}],"x":1}`, Transaction{Acks: []TransactionAck{{AckItem{TransactionID: "t", PartitionID: "p"}, QueueModeGroup}}}},
		"an ack with everything":                        {ops(`{"type":"ack","transactionId":"t","partitionId":"p","status":"failed","consumerGroup":"g","leaseId":"l","error":"e"}`), Transaction{Acks: []TransactionAck{{AckItem{"t", "p", "l", AckFailed, "e"}, "g"}}}},
		"an ack's group may be null":                    {ops(`{"type":"ack","transactionId":"t","partitionId":"p","status":null,"consumerGroup":null,"leaseId":null,"error":null}`), Transaction{Acks: []TransactionAck{{AckItem{TransactionID: "t", PartitionID: "p"}, QueueModeGroup}}}},
		"pushes and acks are told apart, each in order": {ops(`{"type":"ack","transactionId":"a","partitionId":"p"},{"type":"push","queue":"q","payload":1},{"type":"ack","transactionId":"b","partitionId":"p","status":"dlq"},{"type":"push","items":[{"queue":"q","payload":2}]}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", "1"), pushOf("q", "Default", "", "2")}, Acks: []TransactionAck{{AckItem{TransactionID: "a", PartitionID: "p"}, QueueModeGroup}, {AckItem{TransactionID: "b", PartitionID: "p", Status: AckDLQ}, QueueModeGroup}}}},
		"the deepest payload of an item":                {ops(`{"type":"push","items":[{"queue":"q","payload":` + strings.Repeat("[", 59) + strings.Repeat("]", 59) + `}]}`), Transaction{Pushes: []TransactionPush{pushOf("q", "Default", "", strings.Repeat("[", 59)+strings.Repeat("]", 59))}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ScanTransaction([]byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestScanTransactionRefuses(t *testing.T) {
	t.Parallel()
	op := func(s string) string { return `{"operations":[` + s + `]}` }
	tests := map[string]struct{ body, says string }{
		"nothing":                               {"", "unexpected end"},
		"a bare array":                          {`[]`, "position 0"},
		"no operations":                         {`{"requiredLeases":[]}`, "operations is missing"},
		"no operation":                          {`{"operations":[]}`, "operations is empty"},
		"operations that are no array":          {`{"operations":null}`, "operations must be an array"},
		"operations twice":                      {`{"operations":[{"type":"push","items":[]}],"operations":[]}`, `duplicate key "operations"`},
		"an operation that is no object":        {op(`null`), "operation 0 must be an object"},
		"no type":                               {op(`{"queue":"q"}`), "type of operation 0 is missing"},
		"an unknown type":                       {op(`{"type":"push","items":[]},{"type":"pop"}`), "type of operation 1 must be push or ack"},
		"a type in another case":                {op(`{"type":"PUSH"}`), "must be push or ack"},
		"a type that is a number":               {op(`{"type":1}`), "type of operation 0 must be a string"},
		"a type twice":                          {op(`{"type":"push","queue":"q","type":"ack"}`), `duplicate key "type"`},
		"an ack's type twice":                   {op(`{"type":"ack","transactionId":"t","partitionId":"p","type":"ack"}`), `duplicate key "type"`},
		"a push without a queue":                {op(`{"type":"push","payload":1}`), "queue of item 0 is missing"},
		"an item without a queue":               {op(`{"type":"push","items":[{"queue":"q"},{"payload":1}]}`), "queue of item 1 is missing"},
		"items that are no array":               {op(`{"type":"push","items":{}}`), "items must be an array"},
		"items twice":                           {op(`{"type":"push","items":[],"items":[]}`), `duplicate key "items"`},
		"an item that is no object":             {op(`{"type":"push","items":[1]}`), "item 0 must be an object"},
		"a payload twice":                       {op(`{"type":"push","queue":"q","payload":1,"payload":1}`), `duplicate key "payload"`},
		"data twice":                            {op(`{"type":"push","queue":"q","data":1,"data":1}`), `duplicate key "data"`},
		"a trace twice":                         {op(`{"type":"push","queue":"q","traceId":1,"traceId":1}`), `duplicate key "traceId"`},
		"a long name":                           {op(`{"type":"push","queue":"` + strings.Repeat("q", 513) + `"}`), "longer than 512"},
		"an ack without a message":              {op(`{"type":"ack","partitionId":"p"}`), "transactionId of acknowledgment 0 is missing"},
		"an ack without a partition":            {op(`{"type":"ack","transactionId":"t","partitionId":""}`), "partitionId of acknowledgment 0 is missing"},
		"a lease that is a number":              {`{"requiredLeases":[1],"operations":[]}`, "requiredLeases must be a string"},
		"leases that are no array":              {`{"requiredLeases":"l","operations":[]}`, "requiredLeases must be an array"},
		"kv":                                    {`{"kv":[{"op":"get"}],"operations":[]}`, "kv operations are not served"},
		"kv of another type":                    {`{"kv":{},"operations":[]}`, "kv must be an array"},
		"timers":                                {`{"operations":[],"timers":[1]}`, "timers operations are not served"},
		"timers twice":                          {`{"timers":null,"timers":null}`, `duplicate key "timers"`},
		"trailing text":                         {op(`{"type":"push","items":[]}`) + "x", "position"},
		"a payload too deep for its item":       {op(`{"type":"push","items":[{"queue":"q","payload":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}]}`), "nesting"},
		"invalid text before a type that stops": {op(`{"a":01,"type":"push"}`), "position"},
		"invalid text behind the type":          {op(`{"type":"push","queue":"q","a":01}`), "position"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ScanTransaction([]byte(tt.body))
			e := AsError(err)
			if e != nil {
				var envelope struct {
					TransactionID uuid.UUID
					Success       *bool
					Reason, Error string
					Results       []any
				}
				if text := e.AppendJSON(nil, "r"); json.Unmarshal(text, &envelope) != nil || envelope.TransactionID == uuid.Nil || envelope.Success == nil ||
					*envelope.Success || envelope.Reason != "bad_request" || envelope.Error != e.Detail || envelope.Results == nil {
					t.Errorf("the envelope is %s", text)
				}
			}
			if e == nil || e.Code != InvalidRequest || !strings.HasPrefix(e.Detail, "bad body: ") || !strings.Contains(e.Detail, tt.says) {
				t.Errorf("got %v, want invalid_request saying %q", err, tt.says)
			}
		})
	}
}

func TestFenced(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"operations":[{"type":"ack","transactionId":"t","partitionId":"p"}]}`:                                                                            false,
		`{"operations":[{"type":"ack","transactionId":"t","partitionId":"p","leaseId":""}],"requiredLeases":[""]}`:                                         false,
		`{"operations":[{"type":"ack","transactionId":"t","partitionId":"p"}],"requiredLeases":["l"]}`:                                                     true,
		`{"operations":[{"type":"ack","transactionId":"t","partitionId":"p"},{"type":"ack","transactionId":"u","partitionId":"p","leaseId":"not-an-id"}]}`: true,
	} {
		tx, err := ScanTransaction([]byte(body))
		if err != nil || tx.Fenced() != want {
			t.Errorf("%s: %v, %v; want %v", body, tx.Fenced(), err, want)
		}
	}
}

// oracleTransaction applies the rules to the oracle's reading of the body.
func oracleTransaction(body []byte) (Transaction, error) {
	var out Transaction
	root, err := oracleParse(body)
	if err != nil || root.kind != '{' {
		return out, errOracle
	}
	for _, name := range []string{"kv", "timers"} {
		v, found, err := root.get(name)
		if err != nil || found && v.kind != 'n' && (v.kind != '[' || len(v.items) > 0) {
			return out, errOracle
		}
	}
	leases, found, err := root.get("requiredLeases")
	if err != nil || found && leases.kind != 'n' && leases.kind != '[' {
		return out, errOracle
	}
	for _, l := range leases.items {
		if l.kind != 'n' && l.kind != '"' {
			return out, errOracle
		}
		if l.text != "" {
			out.Leases = append(out.Leases, l.text)
		}
	}
	ops, found, err := root.get("operations")
	if err != nil || !found || ops.kind != '[' || len(ops.items) == 0 {
		return out, errOracle
	}
	for _, n := range ops.items {
		kind, _, err := n.get("type")
		if err != nil || n.kind != '{' || kind.kind != '"' {
			return out, errOracle
		}
		switch kind.text {
		case "push":
			flat, flatErr := oracleItem(n)
			if flatErr != nil && flatErr != errNoQueue {
				return out, errOracle
			}
			list, found, err := n.get("items")
			switch {
			case err != nil || found && list.kind != 'n' && list.kind != '[':
				return out, errOracle
			case found && list.kind == '[':
				for _, i := range list.items {
					it, err := oracleItem(i)
					if err != nil {
						return out, errOracle
					}
					out.Pushes = append(out.Pushes, it)
				}
			case flatErr != nil:
				return out, errOracle
			default:
				out.Pushes = append(out.Pushes, flat)
			}
		case "ack":
			req, err := oracleAck(n.raw, false)
			if err != nil || req.Items[0].TransactionID == "" || req.Items[0].PartitionID == "" {
				return out, errOracle
			}
			out.Acks = append(out.Acks, TransactionAck{req.Items[0], req.Group})
		default:
			return out, errOracle
		}
	}
	return out, nil
}

var errNoQueue = bad("the oracle misses a queue")

func oracleItem(n node) (TransactionPush, error) {
	it := TransactionPush{PushItem: PushItem{Partition: DefaultPartition, Payload: []byte("{}")}}
	if n.kind != '{' {
		return it, errOracle
	}
	if v, found, err := n.get("queue"); err != nil || found && v.kind != '"' {
		return it, errOracle
	}
	q, ok, err := n.str("queue")
	if err != nil || ok && q == "" || !oracleName(q) {
		return it, errOracle
	}
	it.Queue = q
	p, _, err := n.str("partition")
	if err != nil || !oracleName(p) {
		return it, errOracle
	}
	if p != "" {
		it.Partition = p
	}
	id, _, err := n.str("transactionId")
	if err != nil || len(id) > MaxTransactionIDBytes || hasControl(id) {
		return it, errOracle
	}
	it.TransactionID = optional(id)
	for _, name := range []string{"data", "payload"} {
		v, found, err := n.get(name)
		if err != nil {
			return it, errOracle
		}
		if found {
			it.Payload = v.raw
		}
	}
	trace, _, err := n.get("traceId")
	if err != nil {
		return it, errOracle
	}
	if id, err := uuid.Parse(trace.text); err == nil && len(trace.text) == 36 {
		it.TraceID = id.String()
	}
	if !ok {
		return it, errNoQueue
	}
	return it, nil
}

func FuzzScanTransaction(f *testing.F) {
	for _, s := range []string{
		`{"operations":[{"type":"push","items":[{"queue":"q","data":{"a":1},"traceId":"0198f000-0000-7000-8000-0000000000aa"}]},{"type":"ack","transactionId":"t","partitionId":"p","leaseId":"l","status":"ok","consumerGroup":null}],"requiredLeases":["l",null]}`,
		`{"operations":[{"queue":"q","payload":"\ud83d\ude00","partition":null,"type":"push"}],"kv":null,"timers":[]}`,
		`{"operations":[{"type":"push","queue":"a","items":[{"queue":"b"}],"payload":1,"data":2,"transactionId":"x"}]}`,
		`{"operations":[{"type":"push","items":null,"queue":"b"},{"ty\u0070e":"ack","transactionId":"t","partitionId":"p","error":"e"}]}`,
		`{"operations":[{"type":"push","queue":1,"items":[]}]}`, `{"operations":[{"type":"ack","type":"ack"}]}`, `{"operations":[]}`, `{"kv":[1]}`,
		`{"operations":[{"type":"push","items":[{"queue":"q","payload":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}]}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, wantErr := oracleTransaction(body)
		got, err := ScanTransaction(body)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("scanner says %v, oracle says %v", err, wantErr)
		}
		if err == nil {
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		}
	})
}

// TestGoldenTransactions pins the bytes of the answers to transactions.
func TestGoldenTransactions(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("0198f000-0000-7000-8000-000000000001")
	refused := *bad("operations is missing")
	refused.Members = string(appendFailure(nil, id, ReasonBadRequest))
	golden(t, map[string][]byte{
		"transaction_committed.json": AppendTransactionResults(nil, id, []TransactionResult{
			{Push: true, TransactionID: "ord-1", MessageID: id, Queue: "orders", PartitionID: id},
			{Push: true, TransactionID: "ord-1", MessageID: id, Queue: "orders", PartitionID: id, Duplicate: true},
			{TransactionID: "in-1"},
			{TransactionID: "in-2", DLQ: true},
			{TransactionID: "in-0", Noop: true},
		}),
		"transaction_empty.json":     AppendTransactionResults(nil, id, nil),
		"transaction_duplicate.json": AppendTransactionFailure(nil, id, ReasonDuplicate, DuplicateText("ord-1", "orders"), 0),
		"transaction_rejected.json":  AppendTransactionFailure(nil, id, ReasonAckRejected, RejectedText("in-1", "unresolvable: nowhere"), 2),
		"transaction_lease.json":     AppendTransactionFailure(nil, id, ReasonAckRejected, LeaseText("l\"1", "invalid or expired lease (invalid_lease)"), -1),
		"transaction_refused.json":   refused.AppendJSON(nil, "req-1"),
	})
}

func TestTransactionTextsAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 5000)
	for _, text := range []string{DuplicateText(long, long), RejectedText(long, "why"), LeaseText(long, "why")} {
		if len(text) > 400 || !json.Valid(AppendString(nil, text)) || !strings.HasSuffix(text, rolledBack) {
			t.Errorf("%d bytes: %s", len(text), text)
		}
	}
}
