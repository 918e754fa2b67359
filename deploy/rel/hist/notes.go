package hist

// Step is how far a fault has come.
type Step string

// The steps of a fault. Every scheduled fault must reach Observed: an effect of it was seen (the process is gone, the
// rule counted packets, the timeline changed), else the run proves nothing about it.
const (
	FaultBegins   Step = "begin"
	FaultObserved Step = "observed"
	FaultRepairs  Step = "repair" // written before the repair begins: from here on things may work again
	FaultEnds     Step = "end"    // written when the repair is done: from here on liveness is judged (V1)
)

// Fault is the argument of a Nemesis event. The events of one fault share its ID.
type Fault struct {
	ID     int    `json:"id"`     // from 1, in the order of the schedule
	Name   string `json:"name"`   // N1, N3, …
	Action string `json:"action"` // kill-9, pause, partition, pg-immediate, …
	Target string `json:"target"` // br1, pg, mesh, …
	Step   Step   `json:"step"`
	Effect string `json:"effect,omitzero"` // what was seen
	// Outage says that PostgreSQL is out of reach of Target (of all brokers when Target is pg) from observed to repair:
	// no operation that lies between may have needed it (B1).
	Outage bool `json:"outage,omitzero"`
	// Clock says that PostgreSQL's wall clock is not to be trusted from begin to end.
	Clock bool `json:"clock,omitzero"`
	// DeadlineMs is how long after end every client must be served again, 0 for what V1 says for Name.
	DeadlineMs int64 `json:"deadlineMs,omitzero"`
	// Lossy says that commits may be lost by design: failover to an asynchronous standby.
	Lossy bool `json:"lossy,omitzero"`
}

// The phases of a run, in order.
const (
	Setup  = "setup"
	Warmup = "warmup"
	Load   = "load"
	Healed = "healed" // every fault has ended
	Drain  = "drain"  // producers have stopped, consumers empty the queues
	Final  = "final"  // the final reads
	Done   = "done"   // the run ended as planned; without it the history is of no use as a proof
)

// PhaseNote says that a phase begins.
type PhaseNote struct {
	Phase string `json:"phase"`
}

// ExitNote says that a process ended.
type ExitNote struct {
	Process  string `json:"process"`
	Code     int    `json:"code"` // -1 when killed by a signal
	Signal   string `json:"signal,omitzero"`
	Expected bool   `json:"expected,omitzero"` // by the nemesis or by the end of the run; an unexpected exit fails it
}

// SampleNote is a sample of gauges of one process.
type SampleNote struct {
	Process string             `json:"process"`
	Values  map[string]float64 `json:"values"`
}

// InvariantNote is a look into the database at the end.
type InvariantNote struct {
	Name   string `json:"name"`
	Holds  bool   `json:"holds"`
	Detail string `json:"detail,omitzero"`
}

// LogNote is a line of a process' log that must not be: a panic, a data race, a 500 without a known cause. It fails
// the run.
type LogNote struct {
	Process string `json:"process"`
	Line    string `json:"line"`
}

// NoiseNote is what the machine was like: the run is unknown when a 1 ms timer was late by more than 100 ms at p99.
type NoiseNote struct {
	TimerP99Ms float64 `json:"timerP99Ms"`
	FsyncP99Ms float64 `json:"fsyncP99Ms,omitzero"`
	CPUWait    float64 `json:"cpuWait,omitzero"` // part of the time in which somebody waited for a CPU
}

// MachineNote is what the machine was like for a while, which ends with the note.
type MachineNote struct {
	ForMs  int64   `json:"for"`
	LateMs float64 `json:"late"`            // by how much a 1 ms timer was late at the most
	Others float64 `json:"others,omitzero"` // part of all CPUs that processes had which are not of the run, or other machines on the same host
	Wait   float64 `json:"wait,omitzero"`   // part of the time in which somebody waited for a CPU, or in which none was idle where the kernel does not say
}

// RemarkNote is for people.
type RemarkNote struct {
	Text string `json:"text"`
}
