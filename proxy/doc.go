// Package proxy is the gateway's data path: it takes a request off a client's connection, decides in one fixed order
// whether it may pass, sends it to a broker of the cluster's cell and streams the answer back.
//
// # The order of evaluation
//
// It is the same on every host and stands here only (design.md 4.2):
//
//	connection walls      head limits, framing, one Host, one credential     400 414 431
//	path and class        canonical path, query of a pop                     400 404 405
//	its own route         /openapi.json is answered here, to anybody         200
//	credential            nothing about a cluster is revealed before it      401
//	host and cluster      the two must agree                                 421 403
//	life-cycle status     suspended, paused                                  403 429
//	role or scope                                                            403
//	request bucket        asked on the head, nothing is taken                429
//	body                  byte caps, shared byte budget, pace, one scan      413 403 503 408 400
//	the plan              quota.Gate.Admit: all or nothing                   413 429 403
//	broker                rendezvous choice (docs/design/upstream.md)        502 503 504
//
// Everything above "body" is decided on the head: a client that has not sent one byte of its body gets the full answer.
//
// # Vocabulary
//
// An exchange is one request with its answer. A call is one attempt at a broker. A pool is the brokers of a cell. A
// held poll is a waiting pop that has no broker right now, or a refused one that is answered a little later, since old
// clients poll again at once.
//
// # Promises
//
// What reaches a broker is built from nothing but values this package has parsed: the canonical path, the canonical
// query of a pop, an allow-list of headers and a body that package wire has scanned. A request is repeated only when
// certainly no byte of it was sent; a read, and a waiting poll under a lease, also before the first byte of its answer.
// A pop does not end in a 5xx because a broker is slow or away. When a client hangs up while its poll waits, slot and
// broker call are given up at once; so they are when the poll loses what it was let in for: key, token, role, or the
// state of its cluster.
//
// What this package does not do: it keeps no counters of plans (package quota), reads no control database (packages
// plans and auth) and speaks no TLS (the listeners it is given do).
package proxy
