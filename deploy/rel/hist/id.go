package hist

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ID says where a message belongs and which one it is. It stands in the payload and, by String, in the transaction id,
// so that a record that turns up anywhere proves by itself whether it is at home.
//
// No field may contain a slash. Prod is the producer: a name that is unique in the run. For workloads that draw
// transaction ids from a pool, Prod is PoolProducer and Seq the number in the pool.
type ID struct {
	Tenant    string `json:"t"`
	Queue     string `json:"q"`
	Partition string `json:"p"`
	Prod      string `json:"prod"`
	Seq       int64  `json:"seq"`
}

// PoolProducer is the producer in transaction ids that are pushed again and again on purpose (W6).
const PoolProducer = "pool"

// String renders the id as a transaction id: tenant/queue/partition/producer/sequence.
func (i ID) String() string {
	return strings.Join([]string{i.Tenant, i.Queue, i.Partition, i.Prod, strconv.FormatInt(i.Seq, 10)}, "/")
}

// ParseID reads what String wrote.
func ParseID(s string) (ID, error) {
	f := strings.Split(s, "/")
	if len(f) != 5 {
		return ID{}, fmt.Errorf("%q is no id of this harness: want tenant/queue/partition/producer/sequence", s)
	}
	seq, err := strconv.ParseInt(f[4], 10, 64)
	if err != nil {
		return ID{}, fmt.Errorf("sequence of %q: %w", s, err)
	}
	return ID{Tenant: f[0], Queue: f[1], Partition: f[2], Prod: f[3], Seq: seq}, nil
}

// Payload is what every message of a run carries. (Prod, Seq) is unique among all pushes of the run, also where the
// transaction id is not: a push that is sent again on purpose with the same content repeats it.
type Payload struct {
	ID
	Canary string `json:"canary,omitzero"` // a secret of the tenant that nobody else may ever see
	Pad    string `json:"pad,omitzero"`
}

// JSON returns the payload as it is pushed: compact, and the same for the same payload.
func (p Payload) JSON() jsontext.Value {
	b, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("a payload of strings and a number does not encode: %v", err)) // only invalid UTF-8 can do that
	}
	return b
}

// ParsePayload reads a payload as it came back.
func ParsePayload(raw jsontext.Value) (Payload, error) {
	var p Payload
	if err := json.Unmarshal(raw, &p); err != nil {
		return Payload{}, fmt.Errorf("no payload of this harness: %w", err)
	}
	return p, nil
}
