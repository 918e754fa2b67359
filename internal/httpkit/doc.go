// Package httpkit is the ground on which the gateway's and the broker's fasthttp servers stand: request ids, the one
// rendering of an error, the panic barrier, the access log line and the connection wrapper that notices a client that
// hangs up while its request is being served.
//
// Everything that leaves as an error leaves through WriteError, so both processes answer the same JSON for the same
// code. Nothing here knows routes, tenants or plans.
//
// HoldbackConn closes two gaps of fasthttp: a handler is never told that its client has gone, and a connection closed
// with unread input may destroy the answer on its way (a reset overtakes it). It sits directly on the socket, under
// TLS, and costs nothing until a handler asks for it.
package httpkit
