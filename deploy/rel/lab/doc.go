// Package lab puts a whole system on this machine: PostgreSQL with an optional standby, brokers, gateways and Redis, each
// a process of its own on loopback.
//
// Every way on which a fault may lie leads through a [Link], a small TCP proxy: broker to PostgreSQL, broker to broker,
// gateway to broker. A link can be cut, be deaf in one direction or both, be slow, or lose pieces of the stream. A broker's
// spool lies, where root has loop devices, on a small file system of its own, so that its disk can run full and its power
// can be cut; see [Volume].
//
// A process that ends on its own is noted in the history and ends the run. Everything is stopped by its process id; a
// process also ends with the harness, however that ends. Nothing here retries silently or waits without a bound.
package lab
