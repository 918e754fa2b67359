package check

import "fmt"

// Rule is one promise.
type Rule uint8

// The rules, by the names that the programme gives them. Those marked ours are not in its table of guarantees but in
// the notes to its workloads, or follow from it.
const (
	O1  Rule = iota // no gaps
	O2              // one value per offset
	O3              // times do not go back
	O4              // order of commits
	O5              // ours: nothing is read that was not pushed
	O6              // ours: the high watermark covers what was acknowledged, and does not go back
	D1              // nothing acknowledged is lost
	D2              // a failure is a failure
	D3              // unknown at most once
	D4              // buffered is durable
	X1              // exact deduplication
	X2              // a duplicate names its original
	X3              // no false duplicates
	X4              // never across tenants or partitions
	L1              // one lease at a time
	L2              // fencing
	A1              // an ack is final
	A2              // nothing is skipped
	A3              // at least once
	A4              // mixed acks and the retry budget
	A5              // autoAck at most once
	A6              // ours: delivery attempts are counted
	LIN             // ours: cursor and lease of a partition and group are linearizable
	T1              // transactions are atomic
	T2              // one committed output per input
	T3              // ours: transactions are strictly serializable (the programme's K2, over logs and cursors)
	Q7              // dead letters
	R1              // retention removes nothing too early
	R2              // retention removes whole prefixes
	R3              // eviction does not disturb consumers
	B1              // behaviour in an outage
	B2              // ours: a spool keeps the order of a producer
	V1              // liveness
	V2              // ours: with the mesh, a waiting pop is woken at once
	C1              // rates are exact
	C2              // and used
	C3              // Retry-After is true
	C4              // slots of waiting polls
	C5              // counts of queues and partitions
	C6              // retained bytes, and the allowance of a month
	C7              // order of refusals
	I1              // isolation
	I2              // noisy neighbours
	Y1              // revocation
	Y2              // ours: without the control database
	P1              // ours: a pop never fails for its broker
	P2              // ours: a broker that fails is found out
	F1              // ours: nothing is left open
	EXT             // no process ended on its own
	LOG             // no panic, data race or unexplained error in a log
	SQL             // the database agrees with itself
	ruleCount
)

// promises is what each rule says, for the report.
var promises = [ruleCount]struct{ name, text string }{
	O1:  {"O1", "offsets of a partition have no gaps"},
	O2:  {"O2", "an offset has one value for every reader, for ever"},
	O3:  {"O3", "creation times never go back along a partition"},
	O4:  {"O4", "a push that came back before another was sent has the lower offset"},
	O5:  {"O5", "nothing is read that nobody pushed"},
	O6:  {"O6", "a high watermark covers every push acknowledged before it was read, and never goes back"},
	D1:  {"D1", "every message answered queued is there exactly once"},
	D2:  {"D2", "what failed never appears"},
	D3:  {"D3", "what is unknown appears at most once"},
	D4:  {"D4", "every message answered buffered is there exactly once"},
	X1:  {"X1", "two messages of one transaction id are at least a window apart"},
	X2:  {"X2", "an answer duplicate names a stored message of the same id, and stores nothing"},
	X3:  {"X3", "no answer duplicate without an original inside the window"},
	X4:  {"X4", "no message in another partition, queue or tenant than its own"},
	L1:  {"L1", "one lease per partition and group at a time"},
	L2:  {"L2", "nothing succeeds under a lease that was superseded"},
	A1:  {"A1", "what is acknowledged is not delivered again"},
	A2:  {"A2", "a delivery begins right behind what may have been acknowledged, without holes"},
	A3:  {"A3", "every message is delivered to every group"},
	A4:  {"A4", "of mixed acks the lowest signal counts, and only failures are charged"},
	A5:  {"A5", "autoAck delivers at most once"},
	A6:  {"A6", "a redelivery counts one attempt more"},
	LIN: {"LIN", "deliveries and acks of one partition and group have one order that explains them"},
	T1:  {"T1", "a transaction is visible as a whole or not at all"},
	T2:  {"T2", "an input has at most one committed output, a rolled back one none"},
	T3:  {"T3", "transactions are strictly serializable"},
	Q7:  {"Q7", "every message ends completed or dead, never both, never neither"},
	R1:  {"R1", "nothing is deleted before its time or before every group has it"},
	R2:  {"R2", "deletions are whole prefixes"},
	R3:  {"R3", "consumers go on without an error when messages are evicted"},
	B1:  {"B1", "without the database pushes are buffered or refused, and nothing else succeeds"},
	B2:  {"B2", "a spool is drained in the order of each producer"},
	V1:  {"V1", "every client is served again soon after a fault"},
	V2:  {"V2", "with the mesh, a waiting pop is woken by another broker within 50 ms (median)"},
	C1:  {"C1", "over the fleet, no window admits more than burst + rate x time, and what is said of faults"},
	C2:  {"C2", "who asks for twice its rate gets it: 99 %, or 95 % with leased tokens"},
	C3:  {"C3", "a lone client that waits as told is let in, and one that comes early is not"},
	C4:  {"C4", "slots are those of the polls that wait: no more than the plan has, and none is lost"},
	C5:  {"C5", "queues and partitions never pass their caps, and can reach them"},
	C6:  {"C6", "retained bytes and messages of a month pass their cap by one request per gateway at most, and only pushes are refused for them"},
	C7:  {"C7", "of several reasons to refuse, the first in the order is told"},
	I1:  {"I1", "no tenant is shown a text of another"},
	I2:  {"I2", "a neighbour that offers fifty times its plan leaves p99 within twice or 50 ms"},
	Y1:  {"Y1", "what is revoked opens nothing a second later, on any gateway, for ever"},
	Y2:  {"Y2", "without the control database, what is known is served, by a gateway that starts then as well"},
	P1:  {"P1", "no pop ends in a 5xx for its broker"},
	P2:  {"P2", "2.5 s after a broker has failed, pushes go elsewhere, and half of a pool is always asked"},
	F1:  {"F1", "after a storm of clients a process holds no more goroutines and files than before"},
	EXT: {"EXT", "no process ended that nobody stopped"},
	LOG: {"LOG", "no panic, data race or unexplained error in the logs"},
	SQL: {"SQL", "the tables agree with themselves"},
}

// String returns the name of the rule.
func (r Rule) String() string {
	if r >= ruleCount {
		return fmt.Sprintf("Rule(%d)", uint8(r))
	}
	return promises[r].name
}

// mustSee are the rules that a workload must have tested on something, else the run proves nothing about it.
var mustSee = map[string][]Rule{
	"W1":  {O1, O2, O3, O4, O5, O6, D1},
	"W2":  {O1, D1, L1, A1, A2, A3, A6},
	"W5":  {T1, T2, T3, L1, A2},
	"W6":  {X1, X2, D1},
	"W7":  {Q7, A4},
	"W8":  {R1, R2, A1},
	"W11": {V1, D1},
	"W13": {B1, D4, B2},
	"G1":  {C1, C2, C3},
	"G2":  {C4, F1},
	"G3":  {C5, C6},
	"G4":  {C7},
	"G5":  {I1},
	"G6":  {I2},

	"G6-turns": {I2},

	"G8":  {Y1},
	"G11": {P1, P2, D1},
}
