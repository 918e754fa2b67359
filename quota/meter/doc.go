// Package meter keeps what clusters have used, beyond the life of a gateway and of Redis.
//
// A month is a calendar month in its tenant's time zone. Each gateway counts for itself, and what it has counted so far
// stands in a row of its own: the rows of a month add up to its use, and a row only ever grows. Saving is therefore free of
// order and of repeats: a batch that is written twice, or whose answer was lost, changes nothing.
//
// Beside it stands who decides without Redis at the moment (alone.go), so that the others hear of it.
//
// The package decides nothing. What a month may use, and what becomes of a cluster that has used it, is package quota's.
// Everything here is safe for concurrent use.
package meter
