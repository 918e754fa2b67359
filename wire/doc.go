// Package wire holds everything that crosses HTTP between a client, the gateway and a broker: request and response
// shapes, the one body scanner, the one route table, header names, the error catalogue and the token with which a
// gateway states a tenant to a broker.
//
// Gateway and broker both import it and meet nowhere else, so they can never disagree on what a body, a path or a
// query means. Nothing here does I/O, keeps state or starts a goroutine; every function is safe for concurrent use.
//
// Vocabulary: a body is scanned, never decoded into a document; scanned payloads alias the body and are valid only as
// long as it is. Names and transaction ids are decoded strings with the limits of limits.go.
package wire
