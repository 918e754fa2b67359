// Package mesh carries hints between the brokers of one cell: short frames that say where to look, never what is so.
// Losing, repeating or reordering them costs latency and nothing else, so a frame is sent once and a full queue drops.
//
// Every node dials every peer and sends on the connections it dialled; on those it accepted it receives, and answers
// heartbeats only. A connection is TLS 1.3 with certificates on both sides and nothing resumed: both sides contribute
// fresh randomness to the handshake and every record has its own counter, so neither a recorded handshake nor a
// recorded frame is worth anything. Trust comes from one of
//
//   - a secret that all nodes share, from which a signing key is derived; each node makes itself a certificate at its
//     start, and no clock is asked. Several secrets are accepted at once, which is how they are rotated;
//   - files: a certificate, its key, and the authority that has signed those of all nodes.
//
// Without either, a mesh listens and dials on the loopback interface only.
//
// A peer is a host with a port. A name that stands for several addresses, such as a headless service, means all of
// them; names are looked up again while the mesh runs. A node that reaches itself notices and keeps away.
package mesh
