// Package plans answers what a cluster may do: catalogue plans, overrides, effective limits, keys, roles and
// life-cycle status, as one immutable Snapshot that a Book keeps in step with the control database.
//
// Vocabulary: a Plan is a row of the catalogue; Overrides are one cluster's differences from it; Limits are what
// counts. nil is unlimited and zero is blocked, everywhere.
//
// Promises: a Snapshot never changes, and holds the database as of one instant, so its parts agree with each other. A
// change is followed within milliseconds through NOTIFY, and within the poll interval when the notification was lost.
// A cluster or key that did not change keeps its pointer from one snapshot to the next. A database that is away leaves
// the last snapshot in force for a bounded time, also for a process that starts meanwhile and finds the file of one before
// it (docs/design/control-outage.md). What a row says that this program does not understand fails closed: an unknown status
// is suspended, an unknown mode enforces, an unknown scope or role is none.
//
// Nothing here writes: the functions of schema queengate do (migrations/gateway/routines).
package plans
