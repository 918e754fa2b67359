package wire

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func pushItems(body string) ([]PushItem, error) {
	var items []PushItem
	err := ScanPush([]byte(body), func(i int, it PushItem) error {
		if i != len(items) {
			return errors.New("items out of order")
		}
		items = append(items, it)
		return nil
	})
	return items, err
}

func TestScanPush(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		body string
		want []PushItem
	}{
		"an empty list":                        {`{"items":[]}`, nil},
		"absent and null mean the defaults":    {`{"items":[{"queue":"q","payload":null,"partition":null,"transactionId":null}]}`, []PushItem{{"q", "Default", nil, []byte("null")}}},
		"an empty partition is Default":        {`{"items":[{"queue":"q","payload":1,"partition":""}]}`, []PushItem{{"q", "Default", nil, []byte("1")}}},
		"an empty transaction id is absent":    {`{"items":[{"queue":"q","payload":1,"transactionId":""}]}`, []PushItem{{"q", "Default", nil, []byte("1")}}},
		"payloads are kept as sent":            {`{"items":[{"payload": {"a" : 1.10, "a":2} ,"queue":"q"}]}`, []PushItem{{"q", "Default", nil, []byte(`{"a" : 1.10, "a":2}`)}}},
		"escapes in names and keys are read":   {`{"items":[{"\u0071ueue":"a\u0026b\/\ud83d\ude00","payload":"\n"}]}`, []PushItem{{"a&b/😀", "Default", nil, []byte(`"\n"`)}}},
		"unknown keys are skipped, even twice": {`{"x":[{}],"items":[{"queue":"q","payload":0,"traceId":{},"traceId":[]}],"x":-0.5e+3}`, []PushItem{{"q", "Default", nil, []byte("0")}}},
		"keys match in exact case":             {`{"items":[{"queue":"q","Queue":1,"payload":2,"PAYLOAD":3}]}`, []PushItem{{"q", "Default", nil, []byte("2")}}},
		"names may repeat and change":          {`{"items":[{"queue":"q","payload":1,"partition":"p"},{"queue":"q","payload":2,"partition":"p"},{"queue":"r","payload":3}]}`, []PushItem{{"q", "p", nil, []byte("1")}, {"q", "p", nil, []byte("2")}, {"r", "Default", nil, []byte("3")}}},
		"the longest names":                    {`{"items":[{"queue":"` + strings.Repeat("q", 512) + `","payload":1,"transactionId":"` + strings.Repeat("t", 65535) + `"}]}`, []PushItem{{strings.Repeat("q", 512), "Default", []byte(strings.Repeat("t", 65535)), []byte("1")}}},
		"the deepest payload":                  {`{"items":[{"queue":"q","payload":` + strings.Repeat("[", 61) + strings.Repeat("]", 61) + `}]}`, []PushItem{{"q", "Default", nil, []byte(strings.Repeat("[", 61) + strings.Repeat("]", 61))}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := pushItems(tt.body)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestScanPushRefuses(t *testing.T) {
	t.Parallel()
	item := func(s string) string { return `{"items":[{"queue":"q","payload":1,` + s + `}]}` }
	tests := map[string]struct{ body, says string }{
		"nothing":                         {"", "unexpected end"},
		"a bare array":                    {`[]`, "position 0"},
		"no items":                        {`{}`, "items is missing"},
		"items twice":                     {`{"items":[],"items":[]}`, `duplicate key "items"`},
		"items that are no array":         {`{"items":{}}`, "items must be an array"},
		"items null":                      {`{"items":null}`, "items must be an array"},
		"an item that is no object":       {`{"items":[1]}`, "item 0 must be an object"},
		"no queue":                        {`{"items":[{"payload":1}]}`, "queue of item 0 is missing"},
		"a queue that is a number":        {`{"items":[{"queue":1,"payload":1}]}`, "queue of item 0 must be a string"},
		"an empty queue":                  {`{"items":[{"queue":"","payload":1}]}`, "queue must not be empty"},
		"a dot segment as a queue":        {`{"items":[{"queue":"..","payload":1}]}`, `queue must not be ".."`},
		"a dot segment as a partition":    {item(`"partition":"."`), `partition must not be "."`},
		"no payload":                      {`{"items":[{"queue":"q"}]}`, "payload of item 0 is missing"},
		"the second item names its index": {`{"items":[{"queue":"q","payload":1},{"queue":"q"}]}`, "item 1"},
		"a partition that is a number":    {item(`"partition":1`), "partition of item 0 must be a string"},
		"a queue twice":                   {item(`"queue":"r"`), `duplicate key "queue"`},
		"a payload twice, once escaped":   {item(`"\u0070ayload":2`), `duplicate key "payload"`},
		"a control character in a name":   {item(`"partition":"a\u001fb"`), "control characters"},
		"a control character in an id":    {item(`"transactionId":"\u0000"`), "control characters"},
		"a long name":                     {item(`"partition":"` + strings.Repeat("p", 513) + `"`), "longer than 512"},
		"a long id":                       {item(`"transactionId":"` + strings.Repeat("p", 65536) + `"`), "longer than 65535"},
		"trailing text":                   {`{"items":[]} x`, "position 13"},
		"a trailing comma":                {`{"items":[],}`, "position 12"},
		"a trailing comma in a payload":   {item(`"x":[1,]`), "position"},
		"a byte order mark":               {"\ufeff" + `{"items":[]}`, "position 0"},
		"invalid UTF-8 in a payload":      {item("\"x\":\"\xff\""), "UTF-8"},
		"an unpaired surrogate":           {item(`"x":"\ud800"`), "invalid escape"},
		"a raw newline in a string":       {item("\"x\":\"a\nb\""), "raw control character"},
		"a bad number":                    {item(`"x":01`), "position"},
		"a bare minus":                    {item(`"x":-`), "position"},
		"a fraction without digits":       {item(`"x":1.`), "position"},
		"an unknown literal":              {item(`"x":nul`), "position"},
		"too deep":                        {item(`"x":` + strings.Repeat("[", 62) + strings.Repeat("]", 62)), "nesting"},
		"ten thousand levels":             {item(`"x":` + strings.Repeat("[", 10000)), "nesting"},
		"mismatched brackets":             {item(`"x":[{]}`), "position"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pushItems(tt.body)
			e := AsError(err)
			if e == nil || e.Code != InvalidRequest || !strings.HasPrefix(e.Detail, "bad body: ") || !strings.Contains(e.Detail, tt.says) {
				t.Errorf("got %v, want invalid_request saying %q", err, tt.says)
			}
			if e != nil {
				assertNoTrap(t, e.Detail)
			}
		})
	}
}

func TestScanPushReturnsTheCallersError(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	n := 0
	err := ScanPush([]byte(`{"items":[{"queue":"q","payload":1},{"queue":"q","payload":1}]}`), func(int, PushItem) error { n++; return stop })
	if err != stop || n != 1 {
		t.Errorf("got %v after %d items", err, n)
	}
}

func TestScanAck(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		body  string
		batch bool
		want  AckRequest
	}{
		"single with everything": {
			`{"transactionId":"t","partitionId":"p","status":"failed","consumerGroup":"g","leaseId":"l","error":"e"}`, false,
			AckRequest{"g", []AckItem{{"t", "p", "l", AckFailed, "e"}}},
		},
		"nulls are absent":       {`{"transactionId":"t","partitionId":"p","status":null,"consumerGroup":null,"leaseId":null,"error":null}`, false, AckRequest{QueueModeGroup, []AckItem{{TransactionID: "t", PartitionID: "p"}}}},
		"missing ids fail alone": {`{}`, false, AckRequest{QueueModeGroup, []AckItem{{}}}},
		"an unknown word fails":  {`{"transactionId":"t","partitionId":"p","status":"Completed"}`, false, AckRequest{QueueModeGroup, []AckItem{{TransactionID: "t", PartitionID: "p", Status: AckFailed}}}},
		"a batch's group is its own": {
			`{"acknowledgments":[{"transactionId":"a","partitionId":"p","consumerGroup":"x","status":"ok"},{"transactionId":"b","partitionId":"p","status":"dlq"},{"transactionId":"c","partitionId":"p","status":"retry"}],"consumerGroup":"g"}`, true,
			AckRequest{"g", []AckItem{{TransactionID: "a", PartitionID: "p"}, {TransactionID: "b", PartitionID: "p", Status: AckDLQ}, {TransactionID: "c", PartitionID: "p", Status: AckRetry}}},
		},
		"an empty batch": {`{"acknowledgments":[]}`, true, AckRequest{QueueModeGroup, nil}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ScanAck([]byte(tt.body), tt.batch)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	for name, body := range map[string]string{
		"no acknowledgments":  `{}`,
		"a wrong type":        `{"acknowledgments":[{"transactionId":1}]}`,
		"an item that is not": `{"acknowledgments":[null]}`,
		"a key twice":         `{"acknowledgments":[{"transactionId":"a","transactionId":"a"}]}`,
		"trailing text":       `{"acknowledgments":[]}]`,
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			if _, err := ScanAck([]byte(body), true); AsError(err) == nil || AsError(err).Code != InvalidRequest {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestScanExtend(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{`{"seconds":2147483647}`: 2147483647, `{"seconds":-1e400}`: 1, `{"seconds":30}`: 30, `{"seconds":3e1}`: 30, `{"seconds":-5}`: 1, `{"x":1,"seconds":2}`: 2, ``: 0, ` `: 0, `{}`: 0, `nonsense`: 0, `{"seconds":"30"}`: 0, `{"seconds":1}x`: 0, `{"seconds":1.5}`: 0, `[]`: 0} {
		got, ok, err := ScanExtend([]byte(body))
		if got != want || ok != (want != 0) || err != nil {
			t.Errorf("%q: got %d, %v, %v; want %d", body, got, ok, err, want)
		}
	}
	for _, body := range []string{`{"seconds":2147483648}`, `{"seconds":99999999999}`, `{"seconds":1e12}`, `{"seconds":1e400}`} {
		if _, ok, err := ScanExtend([]byte(body)); ok || AsError(err) == nil || AsError(err).Code != InvalidRequest || !strings.Contains(err.Error(), "at most 2147483647") {
			t.Errorf("%q: got %v, %v; want a refusal with the bound", body, ok, err)
		}
	}
}

func TestAnArrayThatIsNoneIsNamed(t *testing.T) {
	t.Parallel()
	push := func(body string) error {
		return ScanPush([]byte(body), func(int, PushItem) error { return nil })
	}
	ack := func(batch bool) func(string) error {
		return func(body string) error {
			_, err := ScanAck([]byte(body), batch)
			return err
		}
	}
	transaction := func(body string) error {
		_, err := ScanTransaction([]byte(body))
		return err
	}
	for body, tt := range map[string]struct {
		scan func(string) error
		says string
	}{
		`{"items":null}`:           {push, "items must be an array"},
		`{"items":{}}`:             {push, "items must be an array"},
		`{"operations":"x"}`:       {transaction, "operations must be an array"},
		`{"acknowledgments":null}`: {ack(true), "acknowledgments must be an array"},
		`[]`:                       {ack(false), "it must be an object"},
	} {
		if err := tt.scan(body); AsError(err) == nil || AsError(err).Code != InvalidRequest || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want %q", body, err, tt.says)
		}
	}
}

// TestMinPopWaitTimeIsClamped pins the one option of which the protocol says so.
func TestMinPopWaitTimeIsClamped(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]int{"-5": 0, "0": 0, "60000": 60000, "60001": 60000, "100000": 60000} {
		req, err := ScanConfigure([]byte(`{"queue":"q","options":{"minPopWaitTime":` + sent + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := req.Apply(DefaultOptions(), DefaultOptions(), ConfigureReplace).MinPopWaitTime; got != want {
			t.Errorf("%s: got %d, want %d", sent, got, want)
		}
	}
}

func TestAPollEndsAQuarterOfItsTimeBeforeItsEndOr250Milliseconds(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]time.Duration{
		0: 0, 50 * time.Millisecond: 12500 * time.Microsecond, 500 * time.Millisecond: 125 * time.Millisecond,
		time.Second: 250 * time.Millisecond, 30 * time.Second: 250 * time.Millisecond,
	} {
		if got := PollMargin(timeout); got != want {
			t.Errorf("%v: got %v, want %v", timeout, got, want)
		}
	}
}

func TestConfigureModes(t *testing.T) {
	t.Parallel()
	stored := DefaultOptions()
	stored.LeaseTime, stored.RetryLimit, stored.Namespace = 10, 7, "ns"
	tests := map[string]struct {
		body   string
		absent ConfigureMode
		want   func(*QueueOptions)
	}{
		"replace returns what is omitted to its default": {`{"queue":"q","mode":"replace","options":{"retryLimit":1}}`, ConfigureMerge, func(o *QueueOptions) { *o = DefaultOptions(); o.RetryLimit = 1 }},
		"merge keeps what is omitted":                    {`{"queue":"q","mode":"merge","options":{"retryLimit":1}}`, ConfigureReplace, func(o *QueueOptions) { o.RetryLimit = 1 }},
		"null restores a default under merge":            {`{"queue":"q","mode":"merge","options":{"leaseTime":null}}`, ConfigureReplace, func(o *QueueOptions) { o.LeaseTime = 300 }},
		"an absent mode is the setting's":                {`{"queue":"q","options":{}}`, ConfigureMerge, func(*QueueOptions) {}},
		"old clients send options at the top":            {`{"queue":"q","leaseTime":5,"mode":"merge"}`, ConfigureReplace, func(o *QueueOptions) { o.LeaseTime = 5 }},
		"inside options wins, namespace is read outside": {`{"queue":"q","leaseTime":5,"namespace":"n","mode":"merge","options":{"leaseTime":6}}`, ConfigureReplace, func(o *QueueOptions) { o.LeaseTime, o.Namespace = 6, "n" }},
		"flags": {`{"queue":"q","mode":"merge","options":{"deadLetterQueue":false,"retentionEnabled":true}}`, ConfigureReplace, func(o *QueueOptions) { o.DeadLetterQueue, o.RetentionEnabled = false, true }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := ScanConfigure([]byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			want := stored
			tt.want(&want)
			if d := cmp.Diff(want, req.Apply(stored, DefaultOptions(), tt.absent)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestScanConfigureRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ body, says string }{
		"no queue":              {`{"options":{}}`, "queue is missing"},
		"a queue of wrong type": {`{"queue":null}`, "queue must be a string"},
		"an unknown mode":       {`{"queue":"q","mode":"patch"}`, "mode must be"},
		"a negative":            {`{"queue":"q","options":{"retryLimit":-1}}`, "retryLimit must be 0…"},
		"no lease":              {`{"queue":"q","options":{"leaseTime":0}}`, "leaseTime must be 1…"},
		"out of range":          {`{"queue":"q","options":{"retentionSinkHoldMaxSeconds":59}}`, "60…31536000"},
		"a fraction":            {`{"queue":"q","options":{"ttl":1.5}}`, "whole number"},
		"a string for a number": {`{"queue":"q","options":{"ttl":"1"}}`, "whole number"},
		"a number for a flag":   {`{"queue":"q","options":{"retentionEnabled":1}}`, "true or false"},
		"options of wrong type": {`{"queue":"q","options":[]}`, "options must be an object"},
		"an option twice":       {`{"queue":"q","options":{"ttl":1,"ttl":1}}`, "duplicate key"},
		"a bad sink name":       {`{"queue":"q","options":{"retentionSinkHold":"a/b"}}`, "retentionSinkHold"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ScanConfigure([]byte(tt.body))
			if e := AsError(err); e == nil || e.Code != InvalidRequest || !strings.Contains(e.Detail, tt.says) {
				t.Errorf("got %v, want invalid_request saying %q", err, tt.says)
			}
		})
	}
}

func TestRetentionAskedFor(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int64{
		`{"queue":"q"}`: 0,
		`{"queue":"q","options":{"retentionSeconds":5,"completedRetentionSeconds":9}}`: 9,
		`{"queue":"q","retentionSeconds":5}`:                                           5,
		`{"queue":"q","options":{"retentionSeconds":null}}`:                            0,
	} {
		req, err := ScanConfigure([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := req.Retention(); got != want {
			t.Errorf("%s: got %d, want %d", body, got, want)
		}
	}
}
