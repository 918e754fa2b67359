package wire

import "slices"

// TraceRequest is a scanned body of POST /api/v1/traces. Data aliases the body.
type TraceRequest struct {
	TransactionID string
	PartitionID   string // as sent; not yet checked to be a UUID
	Data          []byte // any JSON value, as sent
	Group         string // QueueModeGroup when absent or null
	EventType     string // "info" when absent, null or empty
	Names         []string
}

// Bounds of one trace event. An event is a note beside a message, not a second payload.
const (
	MaxTraceDataBytes = 64 << 10
	MaxTraceNames     = 64

	defaultEventType = "info"
)

// Bits of the known keys of a trace.
const (
	traceTransaction = iota
	tracePartition
	traceData
	traceGroup
	traceEvent
	traceNames
)

// ScanTrace reads a trace event. transactionId, partitionId and data are required; null counts as absent for all but
// data. traceNames is a string or an array of strings, none of them empty; repeated ones are dropped.
func ScanTrace(body []byte) (TraceRequest, error) {
	s := scanner{b: body}
	t := TraceRequest{Group: QueueModeGroup}
	var keys seen
	text := func(bit uint, key string, into *string) error {
		if err := keys.add(bit, key); err != nil {
			return err
		}
		var err error
		*into, _, err = s.optionalText(key)
		return err
	}
	err := s.object(func(key []byte) (err error) {
		switch string(key) {
		case "transactionId":
			return text(traceTransaction, "transactionId", &t.TransactionID)
		case "partitionId":
			return text(tracePartition, "partitionId", &t.PartitionID)
		case "data":
			if err := keys.add(traceData, "data"); err != nil {
				return err
			}
			t.Data, err = s.skip(1)
			return err
		case "consumerGroup":
			if err := keys.add(traceGroup, "consumerGroup"); err != nil {
				return err
			}
			return s.group(&t.Group)
		case "eventType":
			return text(traceEvent, "eventType", &t.EventType)
		case "traceNames":
			if err := keys.add(traceNames, "traceNames"); err != nil {
				return err
			}
			t.Names, err = s.traceNames()
			return err
		}
		_, err = s.skip(1)
		return err
	})
	if err == nil {
		err = s.end()
	}
	if err == nil {
		err = t.check()
	}
	if err != nil {
		return TraceRequest{}, err
	}
	return t, nil
}

func (t *TraceRequest) check() error {
	switch {
	case t.TransactionID == "":
		return bad("transactionId is missing")
	case t.PartitionID == "":
		return bad("partitionId is missing")
	case t.Data == nil:
		return bad("data is missing")
	case len(t.TransactionID) > MaxTransactionIDBytes:
		return bad("transactionId is longer than %d bytes", MaxTransactionIDBytes)
	case hasControl(t.TransactionID):
		return bad("control characters are not allowed in transactionId")
	case len(t.Data) > MaxTraceDataBytes:
		return bad("data is longer than %d bytes", MaxTraceDataBytes)
	}
	if t.EventType == "" {
		t.EventType = defaultEventType
	}
	return checkName("eventType", t.EventType)
}

// traceNames consumes a string, an array of strings or null.
func (s *scanner) traceNames() (names []string, err error) {
	one := func() error {
		name, err := s.text()
		switch {
		case err != nil || slices.Contains(names, name):
			return err
		case name == "":
			return bad("traceNames must not be blank")
		}
		if len(names) == MaxTraceNames {
			return bad("traceNames has more than %d names", MaxTraceNames)
		}
		names = append(names, name)
		return checkName("traceNames", name)
	}
	switch k, err := s.peek(); {
	case err != nil:
		return nil, err
	case k == kindNull:
		return nil, s.literal("null")
	case k == kindString:
		err = one()
		return names, err
	case k != kindArray:
		return nil, bad("traceNames must be a string or an array of strings")
	}
	err = s.array(func(int) error {
		if k, err := s.peek(); err != nil {
			return err
		} else if k != kindString {
			return bad("traceNames must be a string or an array of strings")
		}
		return one()
	})
	return names, err
}

// ScanSwitch reads {"enabled":bool}: the body of an operator's switch.
func ScanSwitch(body []byte) (on bool, err error) {
	s := scanner{b: body}
	if s.absent() {
		return false, errSwitch
	}
	var keys seen
	err = s.object(func(key []byte) error {
		if string(key) != "enabled" {
			_, err := s.skip(1)
			return err
		}
		if err := keys.add(0, "enabled"); err != nil {
			return err
		}
		switch k, err := s.peek(); {
		case err != nil:
			return err
		case k == kindTrue:
			on = true
			return s.literal("true")
		case k == kindFalse:
			return s.literal("false")
		}
		return errSwitch
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && keys == 0 {
		err = errSwitch
	}
	return on && err == nil, err
}

var errSwitch = Errorf(InvalidRequest, "enabled (boolean) is required")
