// Package hist is what a reliability run leaves behind: one history file, and the vocabulary to write and read it.
//
// A history is a gzip of JSON lines. Line 1 is the [Header]: what ran, against what, with which seed. Every other line
// is an [Event]: an operation was invoked, an operation came back, a fault was injected, or something worth knowing was
// noted. One harness process writes all of it and stamps it with one monotonic clock, so that "a came back before b was
// invoked" is a fact and not an estimate.
//
// Vocabulary. An operation is an invocation (inv) and at most one completion with the same number: ok, fail or info.
// fail is a promise that nothing happened, info is honest ignorance. Which answer means which is said in [Outcome] and
// [ItemOutcome], and nowhere else. An operation without a completion is info.
//
// Arguments and answers are typed, one pair of structs per [Func], with the names of the wire. What the wire does not
// say but the judge needs (which queue, partition and offset an acknowledged message had) stands beside it under names
// of one or two letters.
//
// Promises. A [Writer] may be used by any number of goroutines; lines are in the order of their stamps; an invocation is
// stamped before Invoke returns and a completion after Complete was called, so an interval is never too short. A crash
// of the harness costs at most the last second: a [Reader] gives all whole lines and then says that the file is cut.
package hist
