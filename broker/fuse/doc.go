// Package fuse is the group commit of pushes: messages of concurrent requests, for any partitions, share database
// round trips and commits. It also keeps the dedup watermarks that spare the database most of its duplicate probes.
//
// # Vocabulary
//
// A push is what one request has for one partition. A lane is a partition with work: its pushes wait in it in order,
// and at most one segment of a lane is in flight, so that order within a partition is the order of arrival. A flush is
// one call to the database with a bundle: the next segment of many ready lanes. A batch is the pushes of one lane that
// travel in one segment.
//
// # Dispatch
//
// A lone push leaves at once. While a flush is in flight, everything that arrives gathers behind it, so the size of a
// bundle tunes itself to round trip × arrival rate. One flush in flight per broker is best, because more of them cut
// the same messages into smaller bundles; a second one leaves only when the first takes several times its usual time
// and enough is waiting (pace.go).
//
// Bundles are filled from the tenants in turn, and so are the places for reads and for calls that wait (package fair): a
// turn is for some partitions with a little each, or for a part of what one partition has. A lone tenant fills its
// bundles to the brim. Of the bytes that wait a tenant may hold as many as are free; beyond it, it is refused and its
// neighbours are not.
//
// A partition whose row another broker holds is skipped by the database and rides in the next bundle; after three
// skips it waits for the row in a call of its own, and nobody waits with it.
//
// # Verdicts
//
// Every frame gets exactly one Result. Repeats of a transaction id inside a segment are followers: they are not sent
// and inherit what becomes of the first. A permanent error of a bundle is narrowed down by halves, so only the culprit
// fails; a lost answer fails all frames of the bundle as unknown and is never repeated here.
//
// # Dedup
//
// The database decides, under the partition's row lock; the cache may only narrow what it has to look at. For a
// partition it knows, it holds every transaction id up to an offset, the watermark, and the database probes only
// behind it: nothing, while one broker writes the partition. Frames the cache has seen before go into a segment of
// their own, whose probe begins right before the earliest sighting, so that clean traffic never pays for them. See
// watermark.go for the structure and hydrate.go for how a partition becomes known.
//
// Transactions write partitions without a flush. They hold the lanes meanwhile (hold.go), so that they use and feed the
// same watermarks and no push meets their row locks.
package fuse
