// Package client is the Go SDK of Queengate: pushing, popping and consuming messages of a cluster over HTTP.
//
// A [Client] belongs to one cluster and one API key, and is safe for concurrent use. Messages are pushed with
// [Client.Push] or, many small ones, through a [Batcher]. They are read with [Client.Pop] and settled with [Client.Ack]
// and its like, or by [Client.Consume], a loop that pops, calls a handler, renews the lease meanwhile and settles.
// [Client.Transaction] settles and pushes in one commit.
//
// # Vocabulary
//
// A queue is a named stream of partitions; a partition is an ordered lane. A group reads every message of a queue once;
// without a group, all readers share one cursor. A pop leases a run of messages of a partition to its caller: until the
// lease ends nobody else of the group gets messages of that partition, and settling moves the group's cursor.
//
// # What is promised
//
// Delivery is at least once. A message is settled only after its handler returned, so a crash, a lost lease or a lost
// answer delivers it again: handlers must bear that.
//
// A push is stored once. Every item carries a transaction id, a UUID made here unless the caller gives one, and the
// broker drops a repeat of it within the queue's window (an hour unless configured). So a push is repeated freely by
// this package; to repeat one across calls or processes, give ids that follow from the data, such as an order number.
//
// Nothing that may have been committed is repeated unless a repeat is harmless. What an [Error] calls its outcome
// decides: none means that nothing happened, unknown that it may have. Pushes, leased pops, settling under a lease and
// settings are harmless to repeat; a pop with AutoAck and the start of a redrive are not, and come back as an error
// with an unknown outcome.
//
// # Failures
//
// Answers that heal by themselves are waited for, within [Retry]: 429 for as long as it says, 5xx and broken
// connections with growing pauses, or at once at another URL if there are several. Everything else is returned at
// once as an [*Error] with status, code, and the limit of the plan that refused it; a consumer ends with it. Contexts
// bound every wait: when a pause would outlast the deadline, the error is returned right away.
package client
