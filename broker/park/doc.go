// Package park knows which partitions are probably ready and who waits for them. It is memory only: it runs no SQL,
// and a parked poll costs one list element and no timer, query or, with Ticket.Park, goroutine of its own.
//
// A board stands for one queue of one tenant; it is named by the queue's name, so it can be waited on before the queue
// exists. A ring stands for one consumer group of a board and holds its pending partitions:
//
//	          Mark                    Take                     Report: took, lease
//	idle ───────────────▶ ready ───────────────▶ taken ───────────────────────────▶ leased ──┐
//	  ▲                     ▲ ▲                    │ │   Report: nothing visible yet          │ Release, expiry, probe
//	  │                     │ └── Leave, skipped ──┘ ├────────────────────────▶ delayed ──┐  │
//	  └──── Report: drained ┼────────────────────────┘                                    │  │
//	                        └──────────────────────────────────────────────────────────────┴──┘
//
// A ring may be wrong only by excess: a partition in it may turn out to have nothing to give, which the claim then
// says. That none is missing follows from the order of things. A pop takes its Ticket, which makes the ring, before
// anybody scans the database for the ring or claims for the pop; whatever commits afterwards is marked, and a mark on
// a taken partition is kept until its report. Marks are hints of offsets: one that names nothing new is ignored.
//
// A partition that becomes ready is handed to exactly one waiter, the one that has waited longest, and a waiter is
// handed one partition; so n ready partitions wake n waiters in the order of their arrival. A ticket that leaves with
// a partition in hand hands it on.
//
// Some news is not a mark: cursors that an operator moved, a group or a queue that was deleted. It makes a ring stale:
// everybody parked is woken, nobody parks, and the next Prepare forgets what the ring holds and scans again.
//
// Everything is safe for concurrent use, except that a Ticket belongs to one goroutine. One mutex per board guards
// its rings; nothing blocks under it.
package park
