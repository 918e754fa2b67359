// Package tls makes the server side of TLS: one policy, and two sources of certificates, a local authority for a
// machine of one's own (Local) and a pair of files with hot reload (Files).
//
// Policy: TLS 1.2 at least, the runtime's choice of suites and curves, and http/1.1 as the only protocol offered, since
// the gateway's server speaks no HTTP/2. Certificates are looked up per handshake, so a renewed one serves the next
// handshake and no restart is needed. Everything here is safe for concurrent use.
package tls

import (
	"crypto/tls"
)

// config returns the policy with certificates from get.
func config(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: get,
	}
}
