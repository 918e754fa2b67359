package wire

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScanTrace(t *testing.T) {
	t.Parallel()
	const head = `{"transactionId":"t","partitionId":"p","data":`
	for rule, c := range map[string]struct {
		body string
		want TraceRequest
	}{
		"the defaults":             {head + `{"n":1}}`, TraceRequest{"t", "p", []byte(`{"n":1}`), QueueModeGroup, "info", nil}},
		"null is data":             {head + `null}`, TraceRequest{"t", "p", []byte("null"), QueueModeGroup, "info", nil}},
		"null is absent elsewhere": {head + `1,"consumerGroup":null,"eventType":null,"traceNames":null}`, TraceRequest{"t", "p", []byte("1"), QueueModeGroup, "info", nil}},
		"a name alone":             {head + `1,"traceNames":"a"}`, TraceRequest{"t", "p", []byte("1"), QueueModeGroup, "info", []string{"a"}}},
		"names are told once":      {head + `1,"traceNames":["b","a","b"]}`, TraceRequest{"t", "p", []byte("1"), QueueModeGroup, "info", []string{"b", "a"}}},
		"all":                      {head + `[],"consumerGroup":"g","eventType":"step","x":[{"data":1}]}`, TraceRequest{"t", "p", []byte("[]"), "g", "step", nil}},
	} {
		got, err := ScanTrace([]byte(c.body))
		if err != nil || !cmp.Equal(got, c.want) {
			t.Errorf("%s: %v\n%s", rule, err, cmp.Diff(c.want, got))
		}
	}
}

func TestScanTraceRefuses(t *testing.T) {
	t.Parallel()
	for rule, body := range map[string]string{
		"no transaction":         `{"partitionId":"p","data":1}`,
		"no partition":           `{"transactionId":"t","data":1}`,
		"no data":                `{"transactionId":"t","partitionId":"p"}`,
		"an empty transaction":   `{"transactionId":"","partitionId":"p","data":1}`,
		"data twice":             `{"transactionId":"t","partitionId":"p","data":1,"data":2}`,
		"names twice":            `{"transactionId":"t","partitionId":"p","data":1,"traceNames":"a","traceNames":"b"}`,
		"names that are none":    `{"transactionId":"t","partitionId":"p","data":1,"traceNames":[1]}`,
		"names of another type":  `{"transactionId":"t","partitionId":"p","data":1,"traceNames":{}}`,
		"a name with a control":  `{"transactionId":"t","partitionId":"p","data":1,"traceNames":"\u0000"}`,
		"large data":             `{"transactionId":"t","partitionId":"p","data":"` + strings.Repeat("d", MaxTraceDataBytes) + `"}`,
		"too many names":         `{"transactionId":"t","partitionId":"p","data":1,"traceNames":[` + strings.TrimSuffix(numbered(MaxTraceNames+1), ",") + `]}`,
		"an empty name":          `{"transactionId":"t","partitionId":"p","data":1,"traceNames":""}`,
		"an empty name of many":  `{"transactionId":"t","partitionId":"p","data":1,"traceNames":["a",""]}`,
		"no object":              `[]`,
		"more than an object":    `{"transactionId":"t","partitionId":"p","data":1}x`,
		"an event with controls": `{"transactionId":"t","partitionId":"p","data":1,"eventType":"\n"}`,
	} {
		if _, err := ScanTrace([]byte(body)); AsError(err) == nil || AsError(err).Code != InvalidRequest {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`"` + strings.Repeat("i", i+1) + `",`)
	}
	return b.String()
}

func TestScanSwitch(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{`{"enabled":true}`: true, ` {"x":1,"enabled":false} `: false} {
		if got, err := ScanSwitch([]byte(body)); err != nil || got != want {
			t.Errorf("%s: %v %v", body, got, err)
		}
	}
	for _, body := range []string{``, " \n", `{}`, `{"enabled":"true"}`, `{"enabled":1}`, `{"enabled":null}`} {
		if _, err := ScanSwitch([]byte(body)); AsError(err) == nil || AsError(err).Text() != "enabled (boolean) is required" {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, body := range []string{`{"enabled":true,"enabled":true}`, `{"enabled":true}}`, `true`} {
		if on, err := ScanSwitch([]byte(body)); err == nil || on {
			t.Errorf("%s: accepted", body)
		}
	}
}

// oracleTrace applies the rules of a trace event in the plainest way.
func oracleTrace(body []byte) (TraceRequest, error) {
	var t TraceRequest
	root, err := oracleParse(body)
	if err != nil || root.kind != '{' {
		return t, errOracle
	}
	for key, into := range map[string]*string{"transactionId": &t.TransactionID, "partitionId": &t.PartitionID, "consumerGroup": &t.Group, "eventType": &t.EventType} {
		if *into, _, err = root.str(key); err != nil {
			return t, err
		}
	}
	data, found, err := root.get("data")
	if err != nil || !found || t.TransactionID == "" || t.PartitionID == "" {
		return t, errOracle
	}
	t.Data = data.raw
	if t.Group == "" {
		t.Group = QueueModeGroup
	}
	if t.EventType == "" {
		t.EventType = "info"
	}
	names, found, err := root.get("traceNames")
	if err != nil {
		return t, err
	}
	list := names.items
	switch {
	case !found || names.kind == 'n':
		list = nil
	case names.kind == '"':
		list = []node{names}
	case names.kind != '[':
		return t, errOracle
	}
	for _, n := range list {
		if n.kind != '"' || checkName("", n.text) != nil {
			return t, errOracle
		}
		if n.text != "" && !slices.Contains(t.Names, n.text) {
			t.Names = append(t.Names, n.text)
		}
	}
	if len(t.TransactionID) > MaxTransactionIDBytes || hasControl(t.TransactionID) || len(t.Data) > MaxTraceDataBytes || len(t.Names) > MaxTraceNames ||
		checkName("", t.Group) != nil || checkName("", t.EventType) != nil {
		return t, errOracle
	}
	return t, nil
}

func FuzzScanTrace(f *testing.F) {
	f.Add([]byte(`{"transactionId":"t","partitionId":"p","data":{"n":[1,2]},"traceNames":["a","b"],"eventType":"e","consumerGroup":"g"}`))
	f.Add([]byte(`{"transactionId":"\u0074","partitionId":"p","data":null,"traceNames":"a","traceNames":"a"}`))
	f.Add([]byte(`{"transactionId":null,"data":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := ScanTrace(body)
		want, wantErr := oracleTrace(body)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: scanner %v, oracle %v", body, err, wantErr)
		}
		if err == nil && !cmp.Equal(got, want) {
			t.Errorf("%q: %s", body, cmp.Diff(want, got))
		}
	})
}
