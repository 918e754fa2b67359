package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

// The oracle reads bodies with a strict token reader of another author and applies the rules of the protocol in the
// plainest way. The scanner must agree with it on every body: what is accepted, and what it means.

var errOracle = errors.New("the oracle refuses")

// node is a JSON value with its members in order, duplicates kept.
type node struct {
	kind    jsontext.Kind
	text    string // of a string
	raw     []byte // the value as sent
	members []member
	items   []node
}

type member struct {
	key   string
	value node
}

func oracleParse(body []byte) (node, error) {
	d := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true))
	n, err := oracleValue(d, body, 0)
	if err != nil {
		return n, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return n, errOracle
	}
	return n, nil
}

func oracleValue(d *jsontext.Decoder, body []byte, depth int) (node, error) {
	n := node{kind: d.PeekKind()}
	start := -1
	begin := func() {
		if start < 0 {
			start = int(d.InputOffset())
		}
	}
	switch n.kind {
	case '{', '[':
		if depth == MaxNesting {
			return n, errOracle
		}
		if _, err := d.ReadToken(); err != nil {
			return n, err
		}
		start = int(d.InputOffset()) - 1
		for d.PeekKind() != '}' && d.PeekKind() != ']' {
			var key string
			if n.kind == '{' {
				t, err := d.ReadToken()
				if err != nil {
					return n, err
				}
				key = t.String()
			}
			v, err := oracleValue(d, body, depth+1)
			if err != nil {
				return n, err
			}
			n.items = append(n.items, v)
			n.members = append(n.members, member{key, v})
		}
		if _, err := d.ReadToken(); err != nil {
			return n, err
		}
	default:
		begin()
		v, err := d.ReadValue()
		if err != nil {
			return n, err
		}
		start = int(d.InputOffset()) - len(v)
		if n.kind == '"' {
			b, err := jsontext.AppendUnquote(nil, v)
			if err != nil {
				return n, err
			}
			n.text = string(b)
		}
	}
	n.raw = body[start:d.InputOffset()]
	return n, nil
}

// get returns the one member of that key; a second one is refused.
func (n node) get(key string) (v node, found bool, err error) {
	for _, m := range n.members {
		if n.kind == '{' && m.key == key {
			if found {
				return v, true, errOracle
			}
			v, found = m.value, true
		}
	}
	return v, found, nil
}

func (n node) str(key string) (string, bool, error) {
	v, found, err := n.get(key)
	if err != nil || !found || v.kind == 'n' {
		return "", false, err
	}
	if v.kind != '"' {
		return "", false, errOracle
	}
	return v.text, true, nil
}

func oracleName(s string) bool {
	return s != "." && s != ".." && len(s) <= MaxNameBytes && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

// optional is nil for what is absent.
func optional(text string) []byte {
	if text == "" {
		return nil
	}
	return []byte(text)
}

func oraclePush(body []byte) ([]PushItem, error) {
	root, err := oracleParse(body)
	if err != nil {
		return nil, err
	}
	list, found, err := root.get("items")
	if err != nil || !found || root.kind != '{' || list.kind != '[' {
		return nil, errOracle
	}
	var out []PushItem
	for _, n := range list.items {
		it := PushItem{Partition: DefaultPartition}
		if n.kind != '{' {
			return nil, errOracle
		}
		q, ok, err := n.str("queue")
		if err != nil || !ok || q == "" || !oracleName(q) {
			return nil, errOracle
		}
		it.Queue = q
		p, _, err := n.str("partition")
		if err != nil || !oracleName(p) {
			return nil, errOracle
		}
		if p != "" {
			it.Partition = p
		}
		id, _, err := n.str("transactionId")
		if err != nil || len(id) > MaxTransactionIDBytes || hasControl(id) {
			return nil, errOracle
		}
		it.TransactionID = optional(id)
		v, found, err := n.get("payload")
		if err != nil || !found {
			return nil, errOracle
		}
		it.Payload = v.raw
		out = append(out, it)
	}
	return out, nil
}

func FuzzScanPush(f *testing.F) {
	for _, s := range []string{
		`{"items":[]}`, `{"items":[{"queue":"q","payload":{"a":[1,2.5e-3,"x\u00e9"]}}]}`,
		`{"items":[{"queue":"q","partition":null,"transactionId":"t","payload":null},{"queue":"q","payload":"\ud83d\ude00"}]}`,
		`{"items":[{"queue":"q","payload":1,"queue":"r"}]}`, `{"items":[{"queue":"q","payload":{"a":1,"a":2}}]}`,
		`{"items":[{"Queue":"q","payload":1}]}`, `{"items":[{"queue":"\ud800","payload":1}]}`, "{\"items\":[{\"queue\":\"\xff\",\"payload\":1}]}",
		`{"items":` + strings.Repeat("[", 70), ` { "items" : [ ] } `, `{"items":[{"\u0071ueue":"q","payload":-0}]}`, `null`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, wantErr := oraclePush(body)
		got, err := pushItems(string(body))
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

func oracleAck(body []byte, batch bool) (AckRequest, error) {
	req := AckRequest{Group: QueueModeGroup}
	root, err := oracleParse(body)
	if err != nil || root.kind != '{' {
		return req, errOracle
	}
	list := []node{root}
	if batch {
		v, found, err := root.get("acknowledgments")
		if err != nil || !found || v.kind != '[' {
			return req, errOracle
		}
		list = v.items
	}
	g, _, err := root.str("consumerGroup")
	if err != nil || !oracleName(g) {
		return req, errOracle
	}
	if g != "" {
		req.Group = g
	}
	for _, n := range list {
		if n.kind != '{' {
			return req, errOracle
		}
		var it AckItem
		var status string
		for key, into := range map[string]*string{"transactionId": &it.TransactionID, "partitionId": &it.PartitionID, "leaseId": &it.LeaseID, "status": &status, "error": &it.Error} {
			if *into, _, err = n.str(key); err != nil {
				return req, err
			}
		}
		if len(it.TransactionID) > MaxTransactionIDBytes {
			return req, errOracle
		}
		switch status {
		case "", "completed", "success", "acked", "ok":
		case "retry":
			it.Status = AckRetry
		case "dlq":
			it.Status = AckDLQ
		default:
			it.Status = AckFailed
		}
		req.Items = append(req.Items, it)
	}
	return req, nil
}

func FuzzScanAck(f *testing.F) {
	for _, s := range []string{
		`{"transactionId":"t","partitionId":"p"}`, `{"acknowledgments":[{"transactionId":"t","partitionId":"p","status":"failed","error":"e"}],"consumerGroup":"g"}`,
		`{"acknowledgments":[]}`, `{"acknowledgments":[{}],"consumerGroup":null}`, `{"status":"ok","status":"dlq"}`, `{"consumerGroup":1}`,
	} {
		f.Add([]byte(s), strings.Contains(s, "ack"))
	}
	f.Fuzz(func(t *testing.T, body []byte, batch bool) {
		want, wantErr := oracleAck(body, batch)
		got, err := ScanAck(body, batch)
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

func oracleConfigure(body []byte) (string, QueueOptions, error) {
	opts := DefaultOptions()
	root, err := oracleParse(body)
	if err != nil || root.kind != '{' {
		return "", opts, errOracle
	}
	queue, ok, err := root.str("queue")
	if err != nil || !ok || queue == "" || !oracleName(queue) {
		return "", opts, errOracle
	}
	mode, ok, err := root.str("mode")
	if err != nil || (ok && mode != "merge" && mode != "replace") {
		return "", opts, errOracle
	}
	inner, nested, err := root.get("options")
	if err != nil || (nested && inner.kind != '{' && inner.kind != 'n') {
		return "", opts, errOracle
	}
	nested = nested && inner.kind == '{'
	apply := func(n node, keep func(name string) bool) error {
		for i := range options {
			o := &options[i]
			v, found, err := n.get(o.name)
			if err != nil {
				return err
			}
			if !found || v.kind == 'n' {
				continue
			}
			switch {
			case o.num != nil:
				x, err := strconv.ParseFloat(string(v.raw), 64)
				upper := o.max
				if upper == 0 {
					upper = maxOption
				}
				if o.name == "minPopWaitTime" && x == math.Trunc(x) && math.Abs(x) <= maxOption {
					x = min(max(x, 0), 60000)
				}
				if v.kind != '0' || err != nil || x != math.Trunc(x) || x < float64(o.min) || x > float64(upper) {
					return errOracle
				}
				if keep(o.name) {
					*o.num(&opts) = int(x)
				}
			case o.str != nil:
				if v.kind != '"' || !oracleName(v.text) || (o.pattern != nil && !o.pattern(v.text)) {
					return errOracle
				}
				if keep(o.name) {
					*o.str(&opts) = v.text
				}
			default:
				if v.kind != 't' && v.kind != 'f' {
					return errOracle
				}
				if keep(o.name) {
					*o.flag(&opts) = v.kind == 't'
				}
			}
		}
		return nil
	}
	err = apply(root, func(name string) bool {
		if !nested {
			return true
		}
		_, inside, _ := inner.get(name)
		return (name == "namespace" || name == "task") && !inside
	})
	if err == nil && nested {
		err = apply(inner, func(string) bool { return true })
	}
	return queue, opts, err
}

func FuzzScanConfigure(f *testing.F) {
	for _, s := range []string{
		`{"queue":"q"}`, `{"queue":"q","options":{"leaseTime":300,"retryLimit":3,"priority":-1,"encryptionEnabled":false}}`,
		`{"queue":"q","leaseTime":1e1,"namespace":null,"task":"t","options":null,"mode":"replace"}`, `{"queue":"q","options":{"task":null},"task":"x"}`,
		`{"queue":"q","options":{"minPopWaitTime":60001}}`, `{"queue":"q","options":{"retentionSinkHold":"a.b","retentionSinkHoldMaxSeconds":60}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		queue, want, wantErr := oracleConfigure(body)
		req, err := ScanConfigure(body)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("scanner says %v, oracle says %v", err, wantErr)
		}
		if err == nil {
			if got := req.Apply(DefaultOptions(), DefaultOptions(), ConfigureReplace); req.Queue != queue || got != want {
				t.Errorf("got %q %+v\nwant %q %+v", req.Queue, got, queue, want)
			}
		}
	})
}
