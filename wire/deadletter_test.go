package wire

import (
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

func oracleRedrive(body []byte) (RedriveRequest, error) {
	r := RedriveRequest{Rate: DefaultRedriveRate}
	fail := func() (RedriveRequest, error) { return RedriveRequest{}, errOracle }
	root, err := oracleParse(body)
	if err != nil || root.kind != '{' {
		return fail()
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
		if r.Destination, err = oracleDestination(v); err != nil {
			return fail()
		}
	}
	f, there, err := root.optional("filter")
	if err != nil || there && f.kind != '{' {
		return fail()
	}
	if !there {
		return r, nil
	}
	if r.Partition, err = oracleFilled(f, "partition"); err != nil {
		return fail()
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

func FuzzDeadLetterBodies(f *testing.F) {
	for _, body := range []string{
		``, ` `, `{}`, `[]`, `null`, `{"queue":"a","partition":"b"}`, `{"queue":"a"}`, `{"queue":"","partition":"b"}`,
		`{"queue":null,"partition":null}`, `{"queue":"a","queue":"b"}`, `{"queue":"\u0001","partition":"b"}`, `{"qu\u0065ue":"a","partition":"b"} x`,
		`{"queue":"q","rate":100.0,"dryRun":true,"filter":{"error":"x","from":"2026-09-01T10:11:12Z","transactionIds":["a","b"]}}`,
		`{"queue":"q","filter":null,"destination":{"queue":"a","partition":"b"},"consumerGroup":"g","rate":null,"dryRun":false}`,
		`{"queue":"q","rate":0}`, `{"queue":"q","rate":"1"}`, `{"queue":"q","filter":{"to":"never"}}`, `{"queue":"q","filter":{"transactionIds":[1]}}`,
		`{"queue":"q","filter":{"transactionIds":[]}}`, `{"queue":"q","dryRun":1}`, `{"queue":"q","destination":{"queue":"a"}}`,
		`{"queue":"q","filter":{"partition":"p","partition":"p"}}`, `{"queue":"q","other":[{"queue":1}]}`,
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
