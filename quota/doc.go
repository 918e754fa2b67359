// Package quota answers what a cluster may still do now: rates with burst, counts of queues and partitions, sizes,
// parked polls, retained bytes and the monthly allowance.
//
// # Shape
//
// Three things are kept apart:
//
//   - The arithmetic is pure: bucket (rate with burst; of the cluster and of keys with limits of their own), slots, registry (names), storage, month. Exact integers, no
//     clock, no lock.
//   - The order stands once, as a table, in order.go. Checks only look; the commit that follows cannot fail. That is
//     what makes a decision all or nothing: a refused request leaves every bucket, registry and counter as it was.
//   - The ledger (Gate) keeps one account per cluster under one mutex and gives out Admissions, each ended exactly
//     once by Settle or Refund.
//
// There are three ledgers, under one conformance suite: local; and, WithFleet, exact and leased, which share rates, slots
// and names with other gateways through Redis (fleet.go, decide.lua). In a fleet an account mirrors what Redis said, and
// the same table is run over it, so that a refusal is the same text and a wait the same arithmetic wherever it was decided.
// How exact that is, and what holds while Redis is away, stands in docs/design/fleet-limits.md.
//
// # A request
//
//	AskHead → read the body → EnsureSeeded (push, configure) → Admit → forward → Settle, or Refund if it never left
//
// A reader that refuses a body itself calls BodyRefused. A refusal of Admit on queues or partitions may be stale: when
// Recount says so, Admit is worth asking once more. A deleted queue is told with QueueDeleted, a broker's 403
// quota_exceeded with Resync, its measures with Measured (UsageDuty says whose to ask for), a deleted cluster with Forget. Run
// sweeps idle clusters and saves months.
//
// # Rules worth knowing
//
// A nil number is unlimited and costs nothing. Zero is blocked: 403 quota_exceeded, since time cannot cure it. Each
// limit is enforced, shadowed or off, live. A shadowed refusal is counted and reported, the request goes through, and
// a rate is not charged for what did not fit, so the shadow count is exactly what enforcement would have refused.
//
// Acks, nacks and extensions go into debt down to -burst of the request bucket and are refused only below that.
// Delivered messages are debited afterwards from the message bucket, which producers share, down to
// -min(5 x burst, 60 s x rate), and free for a minute after the cell lost a broker. Pops are never refused for that debt,
// waiting or not: producers wait for it. Slowing consumers would keep the backlog that made the debt. A plan with a rate of
// deliveries has them pay from that instead: then producers owe nothing, and pops wait until there is a message to deliver.
//
// A key with limits of its own (plans.KeyLimits) is asked for those before its cluster's, and pays both or neither. Refused,
// it has taken nothing of its siblings, not even a place in their line.
//
// A refusal names the true wait, and the bucket remembers what it promised, so that a crowd does not return together.
// Promises, the refusal budget and counters of metrics are the only things a refusal changes.
//
// Counts are decided here and made exact by the broker, which counts under the tenant's row. Whenever this gateway
// does not know a count, it lets the request through.
//
// The month is a calendar month in the tenant's time zone. It counts messages stored and, if the plan says so, first
// deliveries. Months keeps it, and what this gate counts is known to others, and to itself after a restart, by it; in a fleet
// retained bytes and months are Redis's to judge (docs/design/quotas-over-time.md).
//
// Everything is safe for concurrent use. EnsureSeeded and Recount do I/O, through the Seeder, the Measurer and Months; in a fleet Admit may wait for
// Redis, as long as FleetOptions say, and, when Redis has lost what was used over time, once for those that know it.
package quota
