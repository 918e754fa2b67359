package wire

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func oracleWhole(n node) (int64, error) {
	if n.kind != '0' {
		return 0, errOracle
	}
	if v, err := strconv.ParseInt(string(n.raw), 10, 64); err == nil {
		return v, nil
	}
	f, err := strconv.ParseFloat(string(n.raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, errOracle
	}
	return int64(f), nil
}

func oracleSize(n node, key string, def int64) (int64, error) {
	v, found, err := n.get(key)
	if err != nil || !found || v.kind == 'n' {
		return def, err
	}
	x, err := oracleWhole(v)
	if err != nil || x < 0 {
		return 0, errOracle
	}
	return x, nil
}

// oracleEntries returns the list of a body and the queue of each entry.
func oracleEntries(body []byte, most int) (root node, list []node, queues []string, err error) {
	root, err = oracleParse(body)
	if err != nil || root.kind != '{' {
		return root, nil, nil, errOracle
	}
	v, found, err := root.get("entries")
	if err != nil || !found || v.kind != '[' || len(v.items) > most {
		return root, nil, nil, errOracle
	}
	for _, n := range v.items {
		if n.kind != '{' {
			return root, nil, nil, errOracle
		}
		q, ok, err := n.str("queue")
		if err != nil || !ok || q == "" || !oracleName(q) {
			return root, nil, nil, errOracle
		}
		queues = append(queues, q)
	}
	return root, v.items, queues, nil
}

func oracleFetch(body []byte) (FetchRequest, error) {
	var req FetchRequest
	root, list, queues, err := oracleEntries(body, MaxFetchEntries)
	if err != nil {
		return req, err
	}
	wait, err := oracleSize(root, "maxWaitMs", 0)
	if err != nil {
		return req, err
	}
	req.MaxWait = time.Duration(min(wait, 30000)) * time.Millisecond
	if req.MinBytes, err = oracleSize(root, "minBytes", 1); err != nil {
		return req, err
	}
	for i, n := range list {
		e := FetchEntry{Queue: queues[i], Partition: "Default"}
		p, found, err := n.get("partition")
		switch {
		case err != nil:
			return req, err
		case !found || p.kind == 'n':
		case p.kind == '0':
			v, err := oracleWhole(p)
			if err != nil {
				return req, err
			}
			e.Partition = strconv.FormatInt(v, 10)
		case p.kind != '"' || !oracleName(p.text):
			return req, errOracle
		case p.text != "":
			e.Partition = p.text
		}
		at, found, err := n.get("offset")
		if err != nil || !found {
			return req, errOracle
		}
		if e.Offset, err = oracleWhole(at); err != nil || e.Offset < 0 {
			return req, errOracle
		}
		if e.MaxBytes, err = oracleSize(n, "maxBytes", 1<<20); err != nil {
			return req, err
		}
		e.MaxBytes = min(e.MaxBytes, 8<<20)
		req.Entries = append(req.Entries, e)
	}
	return req, nil
}

func FuzzScanFetch(f *testing.F) {
	for _, s := range []string{
		`{"entries":[]}`, `{"entries":[{"queue":"q","offset":0}],"maxWaitMs":500,"minBytes":0}`,
		`{"entries":[{"queue":"q","partition":7,"offset":9007199254740993,"maxBytes":99999999}],"maxWaitMs":99999}`,
		`{"entries":[{"queue":"q","partition":null,"offset":3e2,"maxBytes":null}],"maxWaitMs":null,"minBytes":null}`,
		`{"entries":[{"queue":"q","offset":-1}]}`, `{"entries":[{"queue":"q","offset":1.5}]}`, `{"entries":[{"queue":"q","offset":1,"offset":1}]}`,
		`{"entries":[{"queue":1,"offset":1}]}`, `{"entries":[{"offset":1}]}`, `{"entries":[{"queue":"q"}]}`, `{"entries":[1]}`, `{}`, `{"entries":[{"queue":"q","partition":[],"offset":1}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, wantErr := oracleFetch(body)
		got, err := ScanFetch(body)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("scanner says %v, oracle says %v", err, wantErr)
		}
		if err == nil {
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		} else if e := AsError(err); e.Code != InvalidRequest {
			t.Errorf("code %s", e.Code)
		}
	})
}

func oracleChanged(body []byte) ([]ChangedEntry, error) {
	var out []ChangedEntry
	_, list, queues, err := oracleEntries(body, MaxChangedEntries)
	if err != nil {
		return nil, err
	}
	for i, n := range list {
		e := ChangedEntry{Queue: queues[i]}
		limit, err := oracleSize(n, "limit", 1000)
		if err != nil || limit < 1 || limit > 1000 {
			return nil, errOracle
		}
		e.Limit = int(limit)
		if e.After, _, err = n.str("after"); err != nil {
			return nil, err
		}
		since, found, err := n.get("since")
		switch {
		case err != nil:
			return nil, err
		case !found || since.kind == 'n':
		case since.kind == '0':
			ms, err := oracleWhole(since)
			if err != nil || ms < 0 || ms > maxMillis {
				return nil, errOracle
			}
			e.Since = time.UnixMilli(ms).UTC()
		case since.kind == '"':
			if e.Since, err = time.Parse(time.RFC3339Nano, since.text); err != nil {
				return nil, errOracle
			}
			e.Since = e.Since.UTC()
		default:
			return nil, errOracle
		}
		out = append(out, e)
	}
	return out, nil
}

func FuzzScanChanged(f *testing.F) {
	for _, s := range []string{
		`{"entries":[]}`, `{"entries":[{"queue":"q"}]}`, `{"entries":[{"queue":"q","since":"2026-09-01T10:11:12.123456Z","after":"x","limit":3}]}`,
		`{"entries":[{"queue":"q","since":1764452345678,"after":null,"limit":null}]}`, `{"entries":[{"queue":"q","limit":0}]}`, `{"entries":[{"queue":"q","limit":1001}]}`,
		`{"entries":[{"queue":"q","since":"yesterday"}]}`, `{"entries":[{"queue":"q","since":true}]}`, `{"entries":{}}`, `{"entries":[{"queue":"q","after":1}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, wantErr := oracleChanged(body)
		got, err := ScanChanged(body)
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

func TestReadsHaveBounds(t *testing.T) {
	t.Parallel()
	entries := func(n int) []byte {
		return []byte(`{"entries":[` + strings.TrimSuffix(strings.Repeat(`{"queue":"q","offset":0},`, n), ",") + `]}`)
	}
	if _, err := ScanFetch(entries(MaxFetchEntries)); err != nil {
		t.Error(err)
	}
	if _, err := ScanFetch(entries(MaxFetchEntries + 1)); err == nil {
		t.Errorf("%d entries are read", MaxFetchEntries+1)
	}
	if _, err := ScanChanged(entries(MaxChangedEntries)); err != nil {
		t.Error(err)
	}
	if _, err := ScanChanged(entries(MaxChangedEntries + 1)); err == nil {
		t.Errorf("%d entries are read", MaxChangedEntries+1)
	}
	for body, waits := range map[string]bool{
		`{"entries":[{"queue":"q","offset":0}],"maxWaitMs":1}`:              true,
		`{"entries":[{"queue":"q","offset":0}]}`:                            false,
		`{"entries":[{"queue":"q","offset":0}],"maxWaitMs":1,"minBytes":0}`: false,
		`{"entries":[],"maxWaitMs":1}`:                                      false,
	} {
		if r, err := ScanFetch([]byte(body)); err != nil || r.Waits() != waits {
			t.Errorf("%s: waits %v, %v", body, r.Waits(), err)
		}
	}
}

func TestGoldenReads(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 9, 1, 10, 11, 12, 123456000, time.UTC)
	golden(t, map[string][]byte{
		"fetch.json": AppendFetchAnswer(nil, []FetchResult{
			{Queue: "orders", Partition: "c-17", HighWatermark: 43, LogStart: 7, Records: []Record{{41, "ord-1", []byte(`{"n":1}`), at}, {42, "ord-2", []byte("null"), at}}},
			{Queue: "gone", Partition: "Default", Error: UnknownTopicOrPartition},
		}),
		"fetch_empty.json": AppendFetchAnswer(nil, nil),
		"changed.json": AppendChangedAnswer(nil, &ChangedAnswer{SafeTime: at, Entries: []ChangedResult{
			{Queue: "orders", Partitions: []ChangedPartition{{"c-17", 42, 7, at}}, Next: "AQ"}, {Queue: "orders"}, {Queue: "gone", Error: UnknownTopicOrPartition},
		}}),
	})
}
