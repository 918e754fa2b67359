package wire

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func oracleFilled(n node, key string) (string, error) {
	s, found, err := n.str(key)
	if err != nil || found && s == "" || !oracleName(s) {
		return "", errOracle
	}
	return s, nil
}

func oracleReplay(body []byte) (to Destination, err error) {
	if len(bytesTrim(body)) == 0 {
		return to, nil
	}
	root, err := oracleParse(body)
	if err != nil {
		return to, err
	}
	return oracleDestination(root)
}

func oracleDestination(n node) (to Destination, err error) {
	if n.kind != '{' {
		return to, errOracle
	}
	if to.Queue, err = oracleFilled(n, "queue"); err != nil {
		return Destination{}, err
	}
	if to.Partition, err = oracleFilled(n, "partition"); err != nil {
		return Destination{}, err
	}
	if (to.Queue == "") != (to.Partition == "") {
		return Destination{}, errOracle
	}
	return to, nil
}

// optional returns the member unless it is absent or null.
func (n node) optional(key string) (v node, there bool, err error) {
	v, there, err = n.get(key)
	return v, there && v.kind != 'n', err
}

// only reports an object whose members all are among known.
func (n node) only(known ...string) bool {
	return !slices.ContainsFunc(n.members, func(m member) bool { return !slices.Contains(known, m.key) })
}

func oracleRedrive(body []byte) (RedriveRequest, error) {
	r := RedriveRequest{Rate: DefaultRedriveRate}
	fail := func() (RedriveRequest, error) { return RedriveRequest{}, errOracle }
	root, err := oracleParse(body)
	if err != nil || root.kind != '{' || !root.only("queue", "consumerGroup", "partition", "limit", "rate", "dryRun", "destination", "filter") {
		return fail()
	}
	if r.Partition, err = oracleFilled(root, "partition"); err != nil {
		return fail()
	}
	if v, there, err := root.optional("limit"); err != nil {
		return fail()
	} else if there {
		s := scanner{b: v.raw}
		if r.Limit, err = s.integer("limit"); err != nil || v.kind != '0' || r.Limit < 1 || r.Limit > MaxRedriveLimit {
			return fail()
		}
	}
	if r.Queue, err = oracleFilled(root, "queue"); err != nil || r.Queue == "" {
		return fail()
	}
	if r.Group, err = oracleFilled(root, "consumerGroup"); err != nil {
		return fail()
	}
	if v, there, err := root.optional("rate"); err != nil {
		return fail()
	} else if there {
		s := scanner{b: v.raw} // whole numbers have an oracle of their own
		if r.Rate, err = s.integer("rate"); err != nil || v.kind != '0' || r.Rate < 1 || r.Rate > MaxRedriveRate {
			return fail()
		}
	}
	if v, there, err := root.optional("dryRun"); err != nil || there && v.kind != 't' && v.kind != 'f' {
		return fail()
	} else if there {
		r.DryRun = v.kind == 't'
	}
	if v, there, err := root.optional("destination"); err != nil {
		return fail()
	} else if there {
		if r.Destination, err = oracleDestination(v); err != nil || !v.only("queue", "partition") {
			return fail()
		}
	}
	f, there, err := root.optional("filter")
	if err != nil || there && (f.kind != '{' || !f.only("partition", "error", "from", "to", "transactionIds")) {
		return fail()
	}
	if !there {
		return r, nil
	}
	switch partition, err := oracleFilled(f, "partition"); {
	case err != nil || partition != "" && r.Partition != "":
		return fail()
	case partition != "":
		r.Partition = partition
	}
	if r.ErrorPart, _, err = f.str("error"); err != nil || hasControl(r.ErrorPart) {
		return fail()
	}
	for key, into := range map[string]*time.Time{"from": &r.From, "to": &r.Before} {
		text, found, err := f.str(key)
		if err != nil {
			return fail()
		}
		if found {
			if *into, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return fail()
			}
		}
	}
	if v, there, err := f.optional("transactionIds"); err != nil || there && v.kind != '[' || len(v.items) > maxRedriveIDs {
		return fail()
	} else if there {
		r.TransactionIDs = []string{}
		for _, item := range v.items {
			if item.kind != '"' || hasControl(item.text) {
				return fail()
			}
			r.TransactionIDs = append(r.TransactionIDs, item.text)
		}
	}
	return r, nil
}

func oracleDeadLetter(body []byte) (DeadLetterRequest, error) {
	r := DeadLetterRequest{Group: QueueModeGroup}
	if len(bytesTrim(body)) == 0 {
		return r, nil
	}
	root, err := oracleParse(body)
	if err != nil || root.kind != '{' {
		return DeadLetterRequest{}, errOracle
	}
	group, err := oracleFilled(root, "consumerGroup")
	if err != nil {
		return DeadLetterRequest{}, err
	}
	if group != "" {
		r.Group = group
	}
	if r.Error, _, err = root.str("error"); err != nil {
		return DeadLetterRequest{}, err
	}
	return r, nil
}

func bytesTrim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\n' || b[0] == '\t' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// agree fails when scanner and oracle differ on a body.
func agree[T any](t *testing.T, body []byte, scan, oracle func([]byte) (T, error)) {
	t.Helper()
	got, err := scan(body)
	want, wantErr := oracle(body)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%q: %v, the oracle %v", body, err, wantErr)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%q: %s", body, diff)
	}
}

// What a redrive moves cannot be taken back, so whatever might have been meant to narrow it is read or refused.
func TestARedriveRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for rule, c := range map[string]struct {
		body, says string
	}{
		"a key":                         {`{"queue":"q","timeout":1}`, "its keys are queue, consumerGroup, partition, limit,"},
		"what others call the target":   {`{"queue":"q","target":{"queue":"a","partition":"b"}}`, "the redrive has a key that is not known"},
		"a key of the filter":           {`{"queue":"q","filter":{"errorr":"x"}}`, "filter has a key that is not known; its keys are partition, error,"},
		"a key of the destination":      {`{"queue":"q","destination":{"topic":"x"}}`, "destination has a key that is not known"},
		"a limit of none":               {`{"queue":"q","limit":0}`, "limit must be 1…1000000000"},
		"a limit below none":            {`{"queue":"q","limit":-1}`, "limit must be 1…1000000000"},
		"a limit that is no number":     {`{"queue":"q","limit":"3"}`, "limit must be a whole number"},
		"a limit twice":                 {`{"queue":"q","limit":3,"limit":4}`, "duplicate key"},
		"two partitions":                {`{"queue":"q","partition":"a","filter":{"partition":"b"}}`, "partition stands beside the filter and in it"},
		"a blank partition":             {`{"queue":"q","partition":""}`, "partition must not be blank"},
		"a filter as a list of strings": {`{"queue":"q","filter":["a"]}`, "filter must be an object"},
	} {
		_, err := ScanRedrive([]byte(c.body))
		e := AsError(err)
		if e == nil || e.Code != InvalidRequest || !strings.Contains(e.Text(), c.says) {
			t.Errorf("%s: %v", rule, err)
			continue
		}
		assertNoTrap(t, e.Text())
	}
}

func FuzzDeadLetterBodies(f *testing.F) {
	for _, body := range []string{
		``, ` `, `{}`, `[]`, `null`, `{"queue":"a","partition":"b"}`, `{"queue":"a"}`, `{"queue":"","partition":"b"}`,
		`{"queue":null,"partition":null}`, `{"queue":"a","queue":"b"}`, `{"queue":"\u0001","partition":"b"}`, `{"qu\u0065ue":"a","partition":"b"} x`,
		`{"queue":"q","rate":100.0,"dryRun":true,"filter":{"error":"x","from":"2026-09-01T10:11:12Z","transactionIds":["a","b"]}}`,
		`{"queue":"q","filter":null,"destination":{"queue":"a","partition":"b"},"consumerGroup":"g","rate":null,"dryRun":false}`,
		`{"queue":"q","rate":0}`, `{"queue":"q","rate":"1"}`, `{"queue":"q","filter":{"to":"never"}}`, `{"queue":"q","filter":{"transactionIds":[1]}}`,
		`{"queue":"q","filter":{"transactionIds":[]}}`, `{"queue":"q","dryRun":1}`, `{"queue":"q","destination":{"queue":"a"}}`,
		`{"queue":"q","filter":{"partition":"p","partition":"p"}}`, `{"queue":"q","other":[{"queue":1}]}`,
		`{"queue":"q","limit":3,"partition":"p"}`, `{"queue":"q","limit":0}`, `{"queue":"q","limit":1000000001}`, `{"queue":"q","limit":null,"partition":null}`,
		`{"queue":"q","partition":"p","filter":{"partition":"p"}}`, `{"queue":"q","partition":"p","filter":{"partition":null}}`, `{"queue":"q","partition":""}`,
		`{"queue":"q","filter":{"errorr":"x"}}`, `{"queue":"q","target":{}}`, `{"queue":"q","destination":{"queue":"a","partition":"b","x":1}}`,
		`{"consumerGroup":"g","error":"e"}`, `{"consumerGroup":""}`, `{"error":null}`, `{"error":7}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		agree(t, body, ScanReplay, oracleReplay)
		agree(t, body, ScanRedrive, oracleRedrive)
		agree(t, body, ScanDeadLetter, oracleDeadLetter)
	})
}
