package hist

import (
	"bytes"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Kind is what an event says.
type Kind string

// The kinds. Invoked, OK, Fail and Info belong to operations; see Outcome for what the last three mean.
const (
	Invoked Kind = "inv"
	OK      Kind = "ok"
	Fail    Kind = "fail"
	Info    Kind = "info"
	Nemesis Kind = "nem"  // a fault began, was seen to work, or ended: A is a *Fault
	Noted   Kind = "note" // anything else; F says what
)

// Func names an operation, or what a note is about. Each has its types of A and V; see funcs.
type Func string

// Operations.
const (
	Push        Func = "push"        // *PushArgs, *PushAnswer
	Pop         Func = "pop"         // *PopArgs, *PopAnswer
	Ack         Func = "ack"         // *AckArgs, *AckAnswer
	Extend      Func = "extend"      // *ExtendArgs, *ExtendAnswer
	Transaction Func = "transaction" // *TransactionArgs, *TransactionAnswer
	Fetch       Func = "fetch"       // *FetchArgs, *FetchAnswer
	Seek        Func = "seek"        // *SeekArgs, raw
	Configure   Func = "configure"   // *ConfigureArgs, raw
	DeleteQueue Func = "deletequeue" // *TargetArgs, raw
	DeleteGroup Func = "deletegroup" // *TargetArgs, raw
	DeadLetters Func = "deadletters" // *DeadLettersArgs, *DeadLettersAnswer
	Replay      Func = "replay"      // *ReplayArgs, *ReplayAnswer
	Health      Func = "health"      // *HealthArgs, *HealthAnswer
	Ask         Func = "ask"         // *AskArgs, *AskAnswer
)

// Notes. Each carries its value in A.
const (
	Phase     Func = "phase"     // *PhaseNote
	Exit      Func = "exit"      // *ExitNote
	Sample    Func = "sample"    // *SampleNote
	Invariant Func = "invariant" // *InvariantNote
	Log       Func = "log"       // *LogNote
	Noise     Func = "noise"     // *NoiseNote
	Machine   Func = "machine"   // *MachineNote
	Remark    Func = "remark"    // *RemarkNote
	Edit      Func = "edit"      // *PlanNote
	Truth     Func = "truth"     // *TruthNote
	Parked    Func = "parked"    // *ParkedNote
	Cut       Func = "cut"       // *CutNote
	Leak      Func = "leak"      // *LeakNote
	Offer     Func = "offer"     // *OfferNote
	Rest      Func = "rest"      // *RestNote
	Pooled    Func = "pooled"    // *PoolNote
)

// funcs makes the values into which A and V of an event are decoded. A Func that is not here, or nil, leaves the raw
// JSON: jsontext.Value.
var funcs = map[Func]struct{ args, answer func() any }{
	Push:        {make1[PushArgs], make1[PushAnswer]},
	Pop:         {make1[PopArgs], make1[PopAnswer]},
	Ack:         {make1[AckArgs], make1[AckAnswer]},
	Extend:      {make1[ExtendArgs], make1[ExtendAnswer]},
	Transaction: {make1[TransactionArgs], make1[TransactionAnswer]},
	Fetch:       {make1[FetchArgs], make1[FetchAnswer]},
	Seek:        {make1[SeekArgs], nil},
	Configure:   {make1[ConfigureArgs], nil},
	DeleteQueue: {make1[TargetArgs], nil},
	DeleteGroup: {make1[TargetArgs], nil},
	DeadLetters: {make1[DeadLettersArgs], make1[DeadLettersAnswer]},
	Replay:      {make1[ReplayArgs], make1[ReplayAnswer]},
	Health:      {make1[HealthArgs], make1[HealthAnswer]},
	Phase:       {make1[PhaseNote], nil},
	Exit:        {make1[ExitNote], nil},
	Sample:      {make1[SampleNote], nil},
	Invariant:   {make1[InvariantNote], nil},
	Log:         {make1[LogNote], nil},
	Noise:       {make1[NoiseNote], nil},
	Machine:     {make1[MachineNote], nil},
	Remark:      {make1[RemarkNote], nil},
	Ask:         {make1[AskArgs], make1[AskAnswer]},
	Edit:        {make1[PlanNote], nil},
	Truth:       {make1[TruthNote], nil},
	Parked:      {make1[ParkedNote], nil},
	Cut:         {make1[CutNote], nil},
	Leak:        {make1[LeakNote], nil},
	Offer:       {make1[OfferNote], nil},
	Rest:        {make1[RestNote], nil},
	Pooled:      {make1[PoolNote], nil},
}

func make1[T any]() any { return new(T) }

// Event is one line of a history.
//
// A and V are pointers to the types that belong to F (or a jsontext.Value where there are none), nil when absent: an
// invocation has A, a completion has V, a fault and a note have A. They may be shared between readers and must not be
// changed.
type Event struct {
	T      time.Duration // since the run began, monotonic
	Kind   Kind
	Op     int64  // joins an invocation and its completion; from 1, 0 for faults and notes
	W      string // workload: W1…
	Client int    // the harness' thread; a thread has at most one operation open
	Node   string // the address that was asked, or the target of a fault
	Tenant string // "" is the default tenant
	F      Func
	Status int // HTTP status of a completion, 0 when there was no answer
	A, V   any
	Err    string // what the client saw instead of an answer, or what the answer says is wrong
}

// line is an Event on disk. F stands in front of A and V, because it says how they are read.
type line struct {
	T      int64          `json:"t"`
	Kind   Kind           `json:"k"`
	Op     int64          `json:"op,omitzero"`
	W      string         `json:"w,omitzero"`
	Client int            `json:"c,omitzero"`
	Node   string         `json:"n,omitzero"`
	Tenant string         `json:"tn,omitzero"`
	F      Func           `json:"f,omitzero"`
	Status int            `json:"s,omitzero"`
	A      jsontext.Value `json:"a,omitzero"`
	V      jsontext.Value `json:"v,omitzero"`
	Err    string         `json:"err,omitzero"`
}

// parse decodes one line, in one pass: A and V, which are nearly all of it, go straight into their types.
func (p *parser) parse(text []byte) (Event, error) {
	p.in.Reset(text)
	p.dec.Reset(&p.in)
	var e Event
	if t, err := p.dec.ReadToken(); err != nil || t.Kind() != '{' {
		return Event{}, fmt.Errorf("an event is no object: %w", err)
	}
	for p.dec.PeekKind() != '}' {
		key, err := p.dec.ReadToken()
		if err != nil {
			return Event{}, fmt.Errorf("decode an event: %w", err)
		}
		if err := p.member(&e, key.String()); err != nil {
			return Event{}, fmt.Errorf("decode %q of %s %d: %w", key.String(), e.F, e.Op, err)
		}
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return Event{}, fmt.Errorf("decode an event: %w", err)
	}
	return e, nil
}

// parser holds what decoding needs from line to line. It is for one goroutine.
type parser struct {
	in  bytes.Reader
	dec jsontext.Decoder
}

// member decodes one member of an event.
func (p *parser) member(e *Event, key string) error {
	var into any
	switch key {
	case "t":
		into = (*int64)(&e.T)
	case "k":
		into = &e.Kind
	case "op":
		into = &e.Op
	case "w":
		into = &e.W
	case "c":
		into = &e.Client
	case "n":
		into = &e.Node
	case "tn":
		into = &e.Tenant
	case "f":
		into = &e.F
	case "s":
		into = &e.Status
	case "err":
		into = &e.Err
	case "a":
		create := funcs[e.F].args
		if e.Kind == Nemesis {
			create = make1[Fault]
		}
		return p.value(&e.A, create)
	case "v":
		return p.value(&e.V, funcs[e.F].answer)
	default:
		return p.dec.SkipValue() // of a later version
	}
	return json.UnmarshalDecode(&p.dec, into)
}

func (p *parser) value(into *any, create func() any) error {
	if create == nil {
		raw, err := p.dec.ReadValue()
		*into = raw.Clone()
		return err
	}
	*into = create()
	return json.UnmarshalDecode(&p.dec, *into)
}
