package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/google/uuid"
)

// Way says by what a request finds its broker when its cluster is spread over several (docs/design/upstream.md). It is
// a matter of speed alone: any broker of the cell serves any request.
type Way uint8

const (
	ByTenant    Way = iota // the tenant's first share: what concerns no one queue
	ByQueue                // the parameter :queue, else the first queue that the body names
	ByScope                // namespace and task of a discovery pop
	ByPartition            // the parameter :partition, an id
	ByLease                // the parameter :lease
	BySettled              // the lease of the first acknowledgement in the body, else its partition, else the first queue
)

// Share is what decides between the brokers of a cluster that is spread over k of them: a request goes where share mod
// k leads. It is a hash of a queue's name, and the ids of its partitions and leases carry it, so that requests which
// name only an id go the same way. It does not depend on k: ids stay good when k changes.
type Share uint16

// QueueShare returns the share of a queue.
func QueueShare(queue string) Share { return shareOf(queue) }

// ScopeShare returns the share of a discovery pop. No queue has it but by chance: the bytes between the two cannot
// stand in a name.
func ScopeShare(namespace, task string) Share { return shareOf(namespace + "\x00" + task) }

func shareOf(name string) Share {
	sum := sha256.Sum256([]byte(name))
	return Share(binary.BigEndian.Uint16(sum[:]))
}

// An id that carries a share is a UUID of version 8 (RFC 9562, 5.8) whose last two bytes are the share. Ids of other
// versions were made by brokers that did not know of shares, and carry none.
const (
	shareVersion = 0x80
	shareAt      = 14 // byte
)

// Stamp returns id as an id that carries the share. It keeps 58 of the last 74 bits of a UUIDv7: enough to be unique.
func (s Share) Stamp(id uuid.UUID) uuid.UUID {
	id[6] = id[6]&0x0f | shareVersion
	binary.BigEndian.PutUint16(id[shareAt:], uint16(s))
	return id
}

// ShareOfID reads the share of the id of a partition or a lease as a client sent it; ok is false for any other text.
func ShareOfID(id string) (_ Share, ok bool) {
	const canonical, version, share = 36, 14, 32
	if len(id) != canonical || id[version] != '8' {
		return 0, false
	}
	var b [2]byte
	if _, err := hex.Decode(b[:], []byte(id[share:])); err != nil {
		return 0, false
	}
	return Share(binary.BigEndian.Uint16(b[:])), true
}

// Param returns the decoded value of the parameter with that name, "" when the pattern has none.
func (r *Route) Param(p *Params, name string) string {
	i := 0
	for seg := range strings.SplitSeq(r.Pattern, "/") {
		if n, ok := strings.CutPrefix(seg, ":"); ok {
			if n == name {
				return p[i]
			}
			i++
		}
	}
	return ""
}
