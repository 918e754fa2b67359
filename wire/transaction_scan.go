package wire

import "github.com/google/uuid"

// ScanTransaction reads {"operations":[…],"requiredLeases":[…]}. Payloads alias the body.
//
// A push is {"type":"push","items":[…]} or the fields of one item beside type; with items, such fields mean nothing.
// In an item "data" is another name of payload, which wins, and a traceId that is no UUID is dropped. An ack is
// {"type":"ack"} with the fields of an acknowledgement and a consumerGroup of its own. kv and timers are not served:
// null and [] are the same as absent, anything else is refused. So are an unknown type and an empty list of operations.
// Whatever is malformed is an *Error of InvalidRequest whose detail begins with "bad body: " and whose body has the
// members of a failed transaction too.
func ScanTransaction(body []byte) (Transaction, error) {
	s := scanner{b: body}
	t := transactionScanner{scanner: &s, push: pushScanner{scanner: &s}}
	err := s.object(t.top)
	switch {
	case err != nil:
	case t.keys&(1<<keyOperations) == 0:
		err = bad("operations is missing")
	case t.count == 0:
		err = bad("operations is empty")
	default:
		err = s.end()
	}
	if err != nil {
		e := *AsError(err)
		e.Members = string(appendFailure(nil, uuid.Must(uuid.NewV7()), ReasonBadRequest))
		return Transaction{}, &e
	}
	return t.out, nil
}

// Bits of the known keys of the body.
const (
	keyOperations = iota
	keyRequiredLeases
	keyKV
	keyTimers
)

// Bits of the known keys of a push beside those of pushScanner.
const (
	keyType = keyPayload + 1 + iota
	keyItems
	keyData
	keyTraceID
)

// transactionScanner is the state of one scan.
type transactionScanner struct {
	*scanner
	push  pushScanner // reads the fields that items share with those of a push body
	out   Transaction
	keys  seen // of the body
	count int  // of operations

	traceID string // of the item being read
	data    []byte
	depth   int // of its values
}

func (t *transactionScanner) top(key []byte) error {
	switch string(key) {
	case "operations":
		if err := t.keys.add(keyOperations, "operations"); err != nil {
			return err
		}
		return t.list("operations", t.operation)
	case "requiredLeases":
		if err := t.keys.add(keyRequiredLeases, "requiredLeases"); err != nil {
			return err
		}
		return t.optionalArray("requiredLeases", func(i int) error {
			lease, _, err := t.optionalText("requiredLeases")
			if err == nil && lease != "" {
				t.out.Leases = append(t.out.Leases, lease)
			}
			return err
		})
	case "kv":
		return t.unserved(keyKV, "kv")
	case "timers":
		return t.unserved(keyTimers, "timers")
	}
	_, err := t.skip(1)
	return err
}

// optionalArray consumes null or an array.
func (t *transactionScanner) optionalArray(what string, each func(int) error) error {
	switch k, err := t.peek(); {
	case err != nil:
		return err
	case k == kindNull:
		return t.literal("null")
	case k != kindArray:
		return bad("%s must be an array", what)
	}
	return t.array(each)
}

// unserved consumes a rider of the protocol that this broker does not serve: it must be absent, null or empty.
func (t *transactionScanner) unserved(bit uint, name string) error {
	if err := t.keys.add(bit, name); err != nil {
		return err
	}
	return t.optionalArray(name, func(int) error { return bad("%s operations are not served in a transaction", name) })
}

// errTypeSeen ends the search for an operation's type.
var errTypeSeen = Errorf(InvalidRequest, "the type is known")

func (t *transactionScanner) operation(index int) error {
	t.count++
	if err := t.wantObject("operation", index); err != nil {
		return err
	}
	// What a field means depends on the type, which may come last: look for it first. SDKs send it first.
	start, kind := t.i, ""
	err := t.object(func(key []byte) error {
		if string(key) != "type" {
			_, err := t.skip(3)
			return err
		}
		switch k, err := t.peek(); {
		case err != nil:
			return err
		case k != kindString:
			return bad("type of operation %d must be a string", index)
		}
		var err error
		if kind, err = t.text(); err != nil {
			return err
		}
		return errTypeSeen
	})
	if err != nil && err != error(errTypeSeen) {
		return err
	}
	t.i = start
	switch kind {
	case "push":
		return t.pushOperation()
	case "ack":
		return t.ackOperation(index)
	case "":
		return bad("type of operation %d is missing", index)
	}
	return bad("type of operation %d must be push or ack", index)
}

// pushOperation consumes a push in either form.
func (t *transactionScanner) pushOperation() error {
	flat := len(t.out.Pushes)
	listed := false
	t.begin(flat, 3)
	err := t.object(func(key []byte) error {
		switch string(key) {
		case "type":
			return t.skipKnown(keyType, "type")
		case "items":
			if err := t.push.keys.add(keyItems, "items"); err != nil {
				return err
			}
			k, err := t.peek()
			if err != nil {
				return err
			}
			listed = k != kindNull
			// The fields of the flat form go on behind the list.
			push, trace, data := t.push, t.traceID, t.data
			err = t.optionalArray("items", t.item)
			names := t.push
			t.push, t.traceID, t.data = push, trace, data
			t.push.queue, t.push.partition = names.queue, names.partition
			t.depth = 3
			return err
		}
		return t.field(key)
	})
	if err != nil || listed {
		return err
	}
	return t.finish(flat)
}

func (t *transactionScanner) skipKnown(bit uint, name string) error {
	if err := t.push.keys.add(bit, name); err != nil {
		return err
	}
	_, err := t.skip(3)
	return err
}

// item consumes one item of the list form.
func (t *transactionScanner) item(int) error {
	at := len(t.out.Pushes)
	if err := t.wantObject("item", at); err != nil {
		return err
	}
	t.begin(at, 5)
	if err := t.object(t.field); err != nil {
		return err
	}
	return t.finish(at)
}

func (t *transactionScanner) begin(at, depth int) {
	t.push.index, t.push.it, t.push.keys = at, PushItem{Partition: DefaultPartition}, 0
	t.traceID, t.data, t.depth = "", nil, depth
}

// field consumes the value of one member of an item.
func (t *transactionScanner) field(key []byte) (err error) {
	switch string(key) {
	case "payload":
		if err := t.push.keys.add(keyPayload, "payload"); err != nil {
			return err
		}
		t.push.it.Payload, err = t.skip(t.depth)
		return err
	case "data":
		if err := t.push.keys.add(keyData, "data"); err != nil {
			return err
		}
		t.data, err = t.skip(t.depth)
		return err
	case "traceId":
		if err := t.push.keys.add(keyTraceID, "traceId"); err != nil {
			return err
		}
		k, err := t.peek()
		if err != nil {
			return err
		}
		if k != kindString {
			_, err := t.skip(t.depth)
			return err
		}
		text, err := t.text()
		if err != nil {
			return err
		}
		if id, parseErr := uuid.Parse(text); parseErr == nil && len(text) == 36 {
			t.traceID = id.String()
		}
		return nil
	case "queue", "partition", "transactionId":
		return t.push.field(key)
	}
	_, err = t.skip(t.depth)
	return err
}

// finish takes the item that has been read.
func (t *transactionScanner) finish(index int) error {
	p := &t.push
	if p.keys&(1<<keyQueue) == 0 {
		return bad("queue of item %d is missing", index)
	}
	switch {
	case p.keys&(1<<keyPayload) != 0:
	case p.keys&(1<<keyData) != 0:
		p.it.Payload = t.data
	default:
		p.it.Payload = []byte("{}")
	}
	t.out.Pushes = append(t.out.Pushes, TransactionPush{PushItem: p.it, TraceID: t.traceID})
	return nil
}

func (t *transactionScanner) ackOperation(index int) error {
	// An acknowledgement as such has no type, so a second one is looked for apart.
	start := t.i
	var keys seen
	err := t.object(func(key []byte) error {
		if string(key) == "type" {
			if err := keys.add(0, "type"); err != nil {
				return err
			}
		}
		_, err := t.skip(3)
		return err
	})
	if err != nil {
		return err
	}
	t.i = start
	a := TransactionAck{Group: QueueModeGroup}
	it, err := t.ackItem(index, 3, &a.Group)
	if err != nil {
		return err
	}
	switch {
	case it.TransactionID == "":
		return bad("transactionId of acknowledgment %d is missing", index)
	case it.PartitionID == "":
		return bad("partitionId of acknowledgment %d is missing", index)
	}
	a.AckItem = it
	t.out.Acks = append(t.out.Acks, a)
	return nil
}
