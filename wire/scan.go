package wire

import (
	"math"
	"strconv"
	"strings"
	"sync"
)

// seen is the set of known keys an object has shown already; a second one is refused.
type seen uint32

func (s *seen) add(bit uint, key string) error {
	if *s&(1<<bit) != 0 {
		return bad("duplicate key %q", key)
	}
	*s |= 1 << bit
	return nil
}

// ScanPush reads {"items":[…]} and calls each once per item in order; an error of each ends the scan and is returned
// as it is. Anything malformed is an *Error of InvalidRequest whose detail begins with "bad body: ".
//
// A fault may stand behind items that each has already seen: each must do nothing that cannot be dropped until
// ScanPush has returned nil. An empty partition name means DefaultPartition, as everywhere else on the wire.
func ScanPush(body []byte, each func(index int, item PushItem) error) error {
	p := pushScanners.Get().(*pushScanner)
	defer p.free()
	p.scanner.b, p.each = body, each
	if err := p.scanner.object(p.root); err != nil {
		return err
	}
	if p.body == 0 {
		return bad("items is missing")
	}
	return p.scanner.end()
}

// pushScanners saves what a scan of one small message would mostly consist of: the functions bound to its state.
var pushScanners = sync.Pool{New: func() any {
	p := &pushScanner{scanner: &scanner{}}
	p.root, p.element, p.member = p.top, p.item, p.field
	return p
}}

func (p *pushScanner) free() {
	*p.scanner = scanner{}
	*p = pushScanner{scanner: p.scanner, root: p.root, element: p.element, member: p.member}
	pushScanners.Put(p)
}

// pushScanner is the state of one scan. It remembers the names of the item before: a batch repeats them, and a
// repeated name costs no memory.
type pushScanner struct {
	*scanner
	each             func(int, PushItem) error
	queue, partition string
	body             seen // keys of the body

	// top, item and field, bound once.
	root, member func(key []byte) error
	element      func(index int) error

	index int // of the item being read, and what is known of it so far
	it    PushItem
	keys  seen
}

// Bits of the known keys of an item.
const (
	keyQueue = iota
	keyPartition
	keyTransactionID
	keyPayload
)

func (p *pushScanner) top(key []byte) error {
	if string(key) != "items" {
		_, err := p.skip(1)
		return err
	}
	if err := p.body.add(0, "items"); err != nil {
		return err
	}
	return p.list("items", p.element)
}

func (p *pushScanner) item(index int) error {
	if err := p.wantObject("item", index); err != nil {
		return err
	}
	p.index, p.it, p.keys = index, PushItem{Partition: DefaultPartition}, 0
	if err := p.object(p.member); err != nil {
		return err
	}
	if p.keys&(1<<keyQueue) == 0 {
		return bad("queue of item %d is missing", index)
	}
	if p.keys&(1<<keyPayload) == 0 {
		return bad("payload of item %d is missing", index)
	}
	return p.each(index, p.it)
}

// field consumes the value of one member of an item.
func (p *pushScanner) field(key []byte) (err error) {
	switch string(key) {
	case "queue":
		if err := p.keys.add(keyQueue, "queue"); err != nil {
			return err
		}
		if k, err := p.peek(); err != nil {
			return err
		} else if k != kindString {
			return bad("queue of item %d must be a string", p.index)
		}
		p.queue, err = p.name("queue", p.queue)
		p.it.Queue = p.queue
	case "partition":
		if err := p.keys.add(keyPartition, "partition"); err != nil {
			return err
		}
		switch k, err := p.peek(); {
		case err != nil:
			return err
		case k == kindNull:
			return p.literal("null")
		case k != kindString:
			return bad("partition of item %d must be a string", p.index)
		}
		var name string
		if name, err = p.name("partition", p.partition); err == nil && name != "" {
			p.partition, p.it.Partition = name, name
		}
	case "transactionId":
		if err := p.keys.add(keyTransactionID, "transactionId"); err != nil {
			return err
		}
		id, err := p.optionalBytes("transactionId")
		if err != nil {
			return err
		}
		if len(id) > MaxTransactionIDBytes {
			return bad("transactionId of item %d is longer than %d bytes", p.index, MaxTransactionIDBytes)
		}
		if hasControl(id) {
			return bad("control characters are not allowed in transactionId of item %d", p.index)
		}
		if len(id) > 0 {
			p.it.TransactionID = id
		}
	case "payload":
		if err := p.keys.add(keyPayload, "payload"); err != nil {
			return err
		}
		p.it.Payload, err = p.skip(3)
	default:
		_, err = p.skip(3)
	}
	return err
}

// name consumes a name, returning last itself when it is the same; the empty last of a first item is no name.
func (s *scanner) name(what, last string) (string, error) {
	raw, escaped, err := s.str()
	if err != nil {
		return "", err
	}
	if !escaped && last != "" && string(raw) == last {
		return last, nil
	}
	name := string(raw)
	if escaped {
		name = string(unescape(nil, raw))
	}
	if what == "queue" {
		return name, checkQueue(name)
	}
	return name, checkName(what, name)
}

// ScanAck reads the body of /ack (batch false) or /ack/batch (batch true).
//
// A missing transactionId or partitionId is not malformed: that item fails alone, in its result. The group of a batch
// is that of the call; a group on one of its items is ignored. An empty group means QueueModeGroup.
func ScanAck(body []byte, batch bool) (AckRequest, error) {
	s := scanner{b: body}
	req := AckRequest{Group: QueueModeGroup}
	var err error
	if batch {
		err = s.ackBatch(&req)
	} else {
		var it AckItem
		if k, e := s.peek(); e == nil && k != kindObject {
			return AckRequest{}, bad("it must be an object")
		}
		it, err = s.ackItem(0, 1, &req.Group)
		req.Items = []AckItem{it}
	}
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return AckRequest{}, err
	}
	return req, nil
}

func (s *scanner) ackBatch(req *AckRequest) error {
	var keys seen
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "acknowledgments":
			if err := keys.add(0, "acknowledgments"); err != nil {
				return err
			}
			return s.list("acknowledgments", func(i int) error {
				it, err := s.ackItem(i, 3, nil)
				req.Items = append(req.Items, it)
				return err
			})
		case "consumerGroup":
			if err := keys.add(1, "consumerGroup"); err != nil {
				return err
			}
			return s.group(&req.Group)
		}
		_, err := s.skip(1)
		return err
	})
	if err == nil && keys&1 == 0 {
		return bad("acknowledgments is missing")
	}
	return err
}

func (s *scanner) group(into *string) error {
	g, _, err := s.optionalText("consumerGroup")
	if err != nil || g == "" {
		return err
	}
	*into = g
	return checkName("consumerGroup", g)
}

// ackItem consumes one acknowledgement whose members lie depth levels deep; group is where a consumerGroup goes, nil
// when the item has none of its own.
func (s *scanner) ackItem(index, depth int, group *string) (AckItem, error) {
	var it AckItem
	if err := s.wantObject("acknowledgment", index); err != nil {
		return it, err
	}
	var keys seen
	field := func(bit uint, name string, into *string) error {
		if err := keys.add(bit, name); err != nil {
			return err
		}
		var err error
		*into, _, err = s.optionalText(name)
		return err
	}
	var status string
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "transactionId":
			return field(0, "transactionId", &it.TransactionID)
		case "partitionId":
			return field(1, "partitionId", &it.PartitionID)
		case "leaseId":
			return field(2, "leaseId", &it.LeaseID)
		case "status":
			return field(3, "status", &status)
		case "error":
			return field(4, "error", &it.Error)
		case "consumerGroup":
			if group != nil {
				if err := keys.add(5, "consumerGroup"); err != nil {
					return err
				}
				return s.group(group)
			}
		}
		_, err := s.skip(depth)
		return err
	})
	if err != nil {
		return it, err
	}
	if len(it.TransactionID) > MaxTransactionIDBytes {
		return it, bad("transactionId of acknowledgment %d is longer than %d bytes", index, MaxTransactionIDBytes)
	}
	it.Status = foldStatus(status)
	return it, nil
}

// foldStatus is case-sensitive; what it does not know is a failure, so that a typo never completes a message.
func foldStatus(s string) AckStatus {
	switch s {
	case "", "completed", "success", "acked", "ok":
		return AckCompleted
	case "retry":
		return AckRetry
	case "dlq":
		return AckDLQ
	}
	return AckFailed
}

// ScanExtend reads {"seconds":n}; ok is false when the body is absent, empty, malformed or names no whole number of
// seconds, which all mean the default: published SDKs send no body at all. Less than one second is one; more than a
// lease can be is InvalidRequest, for the client counts on what it asked for.
func ScanExtend(body []byte) (seconds int, ok bool, err error) {
	if len(strings.TrimSpace(string(body))) == 0 {
		return 0, false, nil
	}
	s := scanner{b: body}
	var keys seen
	tooLong := false
	err = s.object(func(key []byte) error {
		if string(key) != "seconds" {
			_, err := s.skip(1)
			return err
		}
		if err := keys.add(0, "seconds"); err != nil {
			return err
		}
		k, err := s.peek()
		if err != nil {
			return err
		}
		if k != kindNumber {
			_, err := s.skip(1)
			return err
		}
		start := s.i
		if err := s.number(); err != nil {
			return err
		}
		n, _ := strconv.ParseFloat(string(s.b[start:s.i]), 64) // beyond its range: infinite, with the sign
		ok = n == math.Trunc(n)
		tooLong = ok && n > maxOption
		seconds = int(min(max(n, 1), maxOption))
		return nil
	})
	switch {
	case err != nil || s.end() != nil || !ok:
		return 0, false, nil
	case tooLong:
		return 0, false, bad("seconds must be at most %d", maxOption)
	}
	return seconds, true, nil
}
