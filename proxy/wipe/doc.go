// Package wipe ends tenants and clusters: what is `deleting` in the control database is removed from its cell, from Redis
// and at last from the control database itself.
//
// Every gateway runs a Wiper; a lease in the control database says which one of the fleet works, and its fence is checked
// by every statement that notes progress, so a holder that was cut off and does not know it changes nothing. All steps may
// be taken twice and by anybody: a kill at any point costs the step that was under way and no more. How far it has come
// stands in queengate.wipes, for whoever goes on and for people (queengate.wipe_progress).
//
// A wipe is over when its cell says that nothing is left, and says so again after brokers have written down what they
// still had in memory. docs/design/wipe.md tells it from the broker's side too.
package wipe
