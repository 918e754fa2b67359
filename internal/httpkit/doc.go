// Package httpkit is the ground on which the gateway's and the broker's fasthttp servers stand: request ids, the one
// rendering of an error, the panic barrier, the access log line and the connection wrapper that notices a client that
// hangs up while its request is being served.
//
// Everything that leaves as an error leaves through WriteError, so both processes answer the same JSON for the same
// code. Nothing here knows routes, tenants or plans.
//
// HoldbackConn closes three gaps of fasthttp: a handler is never told that its client has gone (Watch, Sentry), one that
// waits for long pins a goroutine, a request and buffers (Detach), and a connection closed with unread input may destroy
// the answer on its way, since a reset overtakes it (Linger). It sits directly on the socket, under TLS, and costs nothing
// until a handler asks for it. The mechanism is described in docs/design/parked-polls.md.
package httpkit
