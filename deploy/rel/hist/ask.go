package hist

import (
	"slices"
	"strconv"
	"strings"
)

// Cluster is one tenant's cluster of a workload behind gateways: what it may do decides what is judged.
type Cluster struct {
	Name     string `json:"name"`
	Workload string `json:"workload"` // G1…
	Limits   Limits `json:"limits,omitzero"`
	// Canary is a text that stands in all that the tenant's clients send and that nobody else may ever be shown.
	Canary string `json:"canary,omitzero"`
}

// Limits are those of a cluster's plan. Zero is no limit.
type Limits struct {
	RequestRate   float64 `json:"requestRate,omitzero"` // per second
	RequestBurst  float64 `json:"requestBurst,omitzero"`
	MessageRate   float64 `json:"messageRate,omitzero"`
	MessageBurst  float64 `json:"messageBurst,omitzero"`
	Parked        int     `json:"parked,omitzero"` // waiting polls
	Queues        int     `json:"queues,omitzero"`
	Partitions    int     `json:"partitions,omitzero"` // of each queue, Default not counted
	RetainedBytes int64   `json:"retainedBytes,omitzero"`
	Monthly       int     `json:"monthly,omitzero"` // messages of a calendar month
}

// Cluster returns the cluster of a name, nil when the header does not name it.
func (h *Header) Cluster(name string) *Cluster {
	i := slices.IndexFunc(h.Clusters, func(c Cluster) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &h.Clusters[i]
}

// Does is what a request to a gateway asks for, as far as limits tell such things apart.
type Does string

// What requests do.
const (
	DoesRead      Does = "read"
	DoesPush      Does = "push"
	DoesPop       Does = "pop"  // that does not wait
	DoesPoll      Does = "poll" // a pop that waits
	DoesAck       Does = "ack"
	DoesConfigure Does = "configure"
	DoesDelete    Does = "delete"
)

// AskArgs is one request to a gateway whose admission is judged.
type AskArgs struct {
	Cluster  string `json:"cluster"`
	Does     Does   `json:"does"`
	Messages int    `json:"messages,omitzero"` // of a push
	Bytes    int64  `json:"bytes,omitzero"`    // raw payload bytes of a push
	WaitMs   int    `json:"wait,omitzero"`     // of a poll
	Key      string `json:"key,omitzero"`      // names the credential; "" is the tenant's own, which is never revoked
	// Part is which part of its workload the request plays: lone, solo, noisy, first, …
	Part string `json:"part,omitzero"`
	// Want is the refusal that the request must get, as "status code limit", "" when it is not known beforehand.
	Want string `json:"want,omitzero"`
}

// AskAnswer is what a gateway said of it, whatever the status.
type AskAnswer struct {
	Code       string `json:"code,omitzero"`  // of a refusal
	Limit      string `json:"limit,omitzero"` // that it names
	RetryMs    int64  `json:"retryMs,omitzero"`
	RetryAfter int    `json:"retryAfter,omitzero"` // seconds, of the header
	Mode       string `json:"mode,omitzero"`       // X-Queen-Limit-Mode
	// Leak is a canary of another tenant that stands in the answer, with what is around it.
	Leak string `json:"leak,omitzero"`
}

// Refusal is what an answer said, in the words of AskArgs.Want.
func (a *AskAnswer) Refusal(status int) string {
	return strings.TrimRight(strconv.Itoa(status)+" "+a.Code+" "+a.Limit, " ")
}

// PlanNote says that the limits of a cluster are being changed: written before the edit begins, and again when the control
// database has it.
type PlanNote struct {
	Cluster string `json:"cluster"`
	Limits  Limits `json:"limits"`
	Made    bool   `json:"made,omitzero"`
}

// TruthNote is what the cell's database holds of a cluster, read in one statement.
type TruthNote struct {
	Cluster    string `json:"cluster"`
	Queues     int    `json:"queues"`
	Partitions int    `json:"partitions"` // named ones of the queue that has most
	Bytes      int64  `json:"bytes"`
	// Full says that clients have just tried to go to the caps, at rest: the counts must have reached them.
	Full bool `json:"full,omitzero"`
}

// ParkedNote is the gauge of waiting polls of one gateway, or of one broker.
type ParkedNote struct {
	Gateway string `json:"gateway"` // or broker
	Polls   int    `json:"polls"`
	AskedMs int64  `json:"askedMs"` // how long before the note it was asked
}

// RestNote is what a process holds while it has nothing to do: before a storm of clients, and after it.
type RestNote struct {
	Process    string `json:"process"`
	PID        int    `json:"pid"`
	Broker     bool   `json:"broker,omitzero"`
	After      bool   `json:"after,omitzero"`
	Goroutines int    `json:"goroutines"`
	Files      int    `json:"files"` // open descriptors
}

// Within reports whether a process holds no more than before, but for what comes and goes by itself: a fiftieth, or a few
// connections to the database and workers of the server, which wait for ten seconds for more to do. A broker has connections
// besides that gateways keep.
func (n *RestNote) Within(before *RestNote) bool {
	connections, workers := 8, 24
	if n.Broker {
		connections, workers = 64, 64
	}
	const part = 50
	return n.Goroutines <= before.Goroutines+max(workers, before.Goroutines/part) && n.Files <= before.Files+max(connections, before.Files/part)
}

// PoolNote is what one gateway says of the brokers of its cell.
type PoolNote struct {
	Gateway string `json:"gateway"`
	Brokers int    `json:"brokers"`
	Live    int    `json:"live"`    // whose probes are answered
	Serving int    `json:"serving"` // that are given new requests
}

// CutNote says that a credential counts no more: written when the database has committed it.
type CutNote struct {
	Cluster string `json:"cluster"`
	Key     string `json:"key"`
	How     string `json:"how"` // key, session, role, …
}

// LeakNote says where else a canary was found than in an answer.
type LeakNote struct {
	Where string `json:"where"` // a log, the metrics of a process
	Text  string `json:"text"`
}

// OfferNote is what the sender of a noisy tenant, a process of its own, has offered.
type OfferNote struct {
	Cluster  string  `json:"cluster"`
	Requests int     `json:"requests"`
	Refused  int     `json:"refused"`
	Seconds  float64 `json:"seconds"`
	// MedianMs is how long half of those that were let in took. It is said by a tenant without a rate, which is held back
	// by nothing but that others have their turns.
	MedianMs float64 `json:"medianMs,omitzero"`
}
