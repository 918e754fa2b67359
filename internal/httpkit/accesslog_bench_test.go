package httpkit

import (
	"io"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/obs"
)

// BenchmarkAccessLine is the log line of a request that went well.
func BenchmarkAccessLine(b *testing.B) {
	log, err := obs.NewLogger(obs.NewBuffer(io.Discard), "json", "info")
	if err != nil {
		b.Fatal(err)
	}
	log = log.With("part", "gateway")
	a := Access{
		RequestID: "0198f0aa-0000-7000-8000-000000000000", Tenant: "acme", Cluster: "acme-eu", Method: "POST", Route: "/api/v1/push",
		Status: 201, At: time.Now(), Duration: 1234 * time.Microsecond, BytesIn: 356, BytesOut: 150, Principal: "k_0123456789",
	}
	b.ReportAllocs()
	for b.Loop() {
		a.Log(log)
	}
}
