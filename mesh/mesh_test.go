package mesh

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestEveryNodeHearsEveryOtherOnce(t *testing.T) {
	t.Parallel()
	lns := []net.Listener{listen(t), listen(t), listen(t)}
	cfg := Config{Secrets: []string{secret}}
	for _, ln := range lns {
		cfg.Peers = append(cfg.Peers, ln.Addr().String())
	}
	var nodes []*node
	for i, ln := range lns {
		nodes = append(nodes, start(t, fmt.Sprint("n", i), ln, cfg)) // each is among its own peers
	}
	for _, n := range nodes {
		n.connected(2, 2)
	}
	for i, n := range nodes {
		n.Broadcast(FirstKind+Kind(i), []byte{byte('a' + i)})
		for j, other := range nodes {
			if i != j {
				other.hears(heard{fmt.Sprint("n", i), FirstKind + Kind(i), string(rune('a' + i))})
			}
		}
	}
	for _, n := range nodes {
		if s := n.Stats(); s.Sent != 2 || s.Received != 2 || s.Refused != 0 || len(n.c) != 0 {
			t.Errorf("counters are %+v with %d unread", s, len(n.c))
		}
	}
}

func TestFramesOfOneSenderArriveInOrder(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	b := start(t, "b", ln, Config{Secrets: []string{secret}, Peers: nil})
	a := start(t, "a", listen(t), Config{Secrets: []string{secret}, Peers: []string{b.addr}})
	a.connected(1, 0)
	for i := range 1000 { // within the queue
		a.Broadcast(FirstKind, fmt.Append(nil, i))
	}
	for i := range 1000 {
		b.hears(heard{"a", FirstKind, fmt.Sprint(i)})
	}
}

func TestAStrangerIsRefusedByBothSidesAndCounted(t *testing.T) {
	t.Parallel()
	other := secret[1:] + "X"
	for _, c := range []struct{ name, dials, listens string }{
		{"the listener does not know the dialler", other, secret},
		{"nor the other way round", secret, other},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, "b", listen(t), Config{Secrets: []string{c.listens}})
			a := start(t, "a", listen(t), Config{Secrets: []string{c.dials}, Peers: []string{b.addr}})
			until(t, "a refusal", func() bool { return b.Stats().Refused >= 1 })
			a.Broadcast(FirstKind, []byte("x"))
			if s := a.Stats(); s.Out != 0 || s.Dropped != 1 || b.Stats().Received != 0 {
				t.Errorf("counters are %+v and %+v", s, b.Stats())
			}
		})
	}
}

// The steps of a rotation: at each of them nodes that are one step apart understand each other.
func TestSecretsAreRotatedWithoutAPause(t *testing.T) {
	t.Parallel()
	old, fresh := secret, "another secret of good length...."
	steps := [][]string{{old}, {old, fresh}, {fresh, old}, {fresh}}
	for i := range len(steps) - 1 {
		b := start(t, "b", listen(t), Config{Secrets: steps[i]})
		a := start(t, "a", listen(t), Config{Secrets: steps[i+1], Peers: []string{b.addr}})
		c := start(t, "c", listen(t), Config{Secrets: steps[i], Peers: []string{a.addr}})
		a.connected(1, 1)
		c.connected(1, 0)
		a.Broadcast(FirstKind, []byte("x"))
		b.hears(heard{"a", FirstKind, "x"})
		c.Broadcast(FirstKind, []byte("y"))
		a.hears(heard{"c", FirstKind, "y"})
	}
}

func TestARecordedConnectionIsWorthNothing(t *testing.T) {
	t.Parallel()
	b := start(t, "b", listen(t), Config{Secrets: []string{secret}})
	wire := tap(t, b.addr)
	a := start(t, "a", listen(t), Config{Secrets: []string{secret}, Peers: []string{wire.Addr().String()}})
	a.connected(1, 0)
	a.Broadcast(FirstKind, []byte("x"))
	b.hears(heard{"a", FirstKind, "x"})
	record := wire.sent()
	a.stop()
	until(t, "the end of the connection", func() bool { return b.Stats().In == 0 })

	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(record); err != nil {
		t.Fatal(err)
	}
	until(t, "the refusal of the recording", func() bool { return b.Stats().Refused == 1 })
	if s := b.Stats(); s.Received != 1 || s.In != 0 {
		t.Errorf("counters are %+v", s)
	}
}

// lastRecord returns the last TLS record of a stream: one whose length is exactly what is left.
func lastRecord(t *testing.T, stream []byte) []byte {
	t.Helper()
	for len(stream) >= 5 {
		n := 5 + int(stream[3])<<8 + int(stream[4])
		if n == len(stream) {
			return stream
		}
		stream = stream[n:]
	}
	t.Fatal("the stream does not end with a record")
	return nil
}

func TestAFrameThatIsRepeatedOrChangedEndsTheConnection(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte){
		"repeated": func([]byte) {},
		"changed":  func(r []byte) { r[len(r)-1] ^= 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Without heartbeats between, the last record is the frame.
			quiet := Config{Secrets: []string{secret}, Heartbeat: time.Minute, Dead: time.Hour, Resolve: time.Hour}
			b := start(t, "b", listen(t), quiet)
			wire := tap(t, b.addr)
			quiet.Peers = []string{wire.Addr().String()}
			a := start(t, "a", listen(t), quiet)
			a.connected(1, 0)
			a.Broadcast(FirstKind, []byte("pay"))
			b.hears(heard{"a", FirstKind, "pay"})
			record := lastRecord(t, wire.sent())
			change(record)
			if err := wire.Close(); err != nil { // a new connection would hide the end of this one
				t.Fatal(err)
			}
			if _, err := wire.side.Write(record); err != nil {
				t.Fatal(err)
			}
			until(t, "the end of the connection", func() bool { return b.Stats().In == 0 || len(b.c) > 0 })
			if len(b.c) > 0 {
				t.Fatalf("a forged frame was heard: %+v", <-b.c)
			}
		})
	}
}

func TestAnIncompleteStrangerIsShownOut(t *testing.T) {
	t.Parallel()
	b := start(t, "b", listen(t), Config{Secrets: []string{secret}})
	var conns []net.Conn
	for range maxHandshakes {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	until(t, "all of them at the door", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.inflight == maxHandshakes })
	one, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	until(t, "the one too many", func() bool { return b.Stats().Refused == 1 })
	if _, err := conns[0].Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	until(t, "the one that speaks another protocol", func() bool { return b.Stats().Refused == 2 })
	a := start(t, "a", listen(t), Config{Secrets: []string{secret}, Peers: []string{b.addr}})
	a.connected(1, 0) // there is room again
}

func TestAPeerThatComesBackIsFoundAgain(t *testing.T) {
	t.Parallel()
	ln := listen(t)
	b := start(t, "b", ln, Config{Secrets: []string{secret}})
	a := start(t, "a", listen(t), Config{Secrets: []string{secret}, Peers: []string{b.addr}})
	a.connected(1, 0)
	b.stop()
	a.connected(0, 0)
	a.Broadcast(FirstKind, []byte("lost"))
	if a.Stats().Dropped != 1 {
		t.Errorf("a frame without a peer is not counted as dropped: %+v", a.Stats())
	}
	again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	b = start(t, "b2", again, Config{Secrets: []string{secret}})
	a.connected(1, 0)
	a.Broadcast(FirstKind, []byte("x"))
	b.hears(heard{"a", FirstKind, "x"})
}

func TestASilentPeerIsGivenUp(t *testing.T) {
	t.Parallel()
	b := start(t, "b", listen(t), Config{Secrets: []string{secret}})
	wire := tap(t, b.addr)
	a := start(t, "a", listen(t), Config{
		Secrets: []string{secret}, Peers: []string{wire.Addr().String()},
		Heartbeat: 20 * time.Millisecond, Dead: 500 * time.Millisecond, Resolve: time.Hour,
	})
	a.connected(1, 0)
	wire.mu.Lock()
	wire.deaf = true // a still writes, b still answers, nothing arrives
	wire.mu.Unlock()
	a.connected(0, 0)
}

func TestAFullQueueDropsAndNeverBlocks(t *testing.T) {
	t.Parallel()
	m, err := New(nil, Config{Addr: "127.0.0.1:0", Queue: 2}, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{m: m, queue: make(chan outgoing, 2)}
	m.links["x"] = l
	l.up.Store(true)
	for range 5 {
		m.Broadcast(FirstKind, nil)
	}
	if got := m.Stats().Dropped; got != 3 {
		t.Errorf("%d frames dropped, want 3", got)
	}
	l.drain()
	if got := m.Stats().Dropped; got != 5 {
		t.Errorf("%d frames dropped in all, want 5", got)
	}
}

func TestConfigIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"every interface without keys":     {Addr: ":6633"},
		"a public address without keys":    {Addr: "192.0.2.1:6633"},
		"a name without keys":              {Addr: "localhost:6633"},
		"a foreign peer without keys":      {Addr: "127.0.0.1:6633", Peers: []string{"192.0.2.1"}},
		"a short secret":                   {Addr: ":6633", Secrets: []string{"short"}},
		"a short second secret":            {Addr: ":6633", Secrets: []string{secret, "short"}},
		"half of the files":                {Addr: ":6633", CertFile: "a", KeyFile: "b"},
		"files and secrets":                {Addr: ":6633", CertFile: "a", KeyFile: "b", CAFile: "c", Secrets: []string{secret}},
		"an address without a port":        {Addr: "127.0.0.1"},
		"an empty peer":                    {Addr: "127.0.0.1:6633", Peers: []string{""}},
		"a peer with two ports":            {Addr: "127.0.0.1:6633", Peers: []string{"127.0.0.1:1:2"}},
		"dead before the second heartbeat": {Addr: "127.0.0.1:6633", Heartbeat: time.Second, Dead: time.Second},
	} {
		if err := c.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, c := range map[string]Config{
		"loopback without keys":  {Addr: "127.0.0.1:6633", Peers: []string{"127.0.0.1:6634", "[::1]:6633", "::1", "127.0.0.2"}},
		"anywhere with a secret": {Addr: ":6633", Secrets: []string{secret}, Peers: []string{"broker-1", "broker-2:7000", "2001:db8::1"}},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// pki writes an authority with one certificate it has signed.
func pki(t *testing.T, dir string) (cert, key, ca string) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	now := time.Now()
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, caKey.Public(), caKey)
	must(err)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, leafKey.Public(), caKey)
	must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(leafKey)
	must(err)
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return file
	}
	return write("node.pem", "CERTIFICATE", leafDER), write("node.key", "PRIVATE KEY", keyDER), write("ca.pem", "CERTIFICATE", rootDER)
}

func TestCertificateFilesTrustTheirAuthorityOnly(t *testing.T) {
	t.Parallel()
	var c, foreign Config
	c.CertFile, c.KeyFile, c.CAFile = pki(t, t.TempDir())
	foreign.CertFile, foreign.KeyFile, foreign.CAFile = pki(t, t.TempDir())
	b := start(t, "b", listen(t), c)
	c.Peers, foreign.Peers = []string{b.addr}, []string{b.addr}
	a := start(t, "a", listen(t), c)
	a.connected(1, 0)
	a.Broadcast(FirstKind, []byte("x"))
	b.hears(heard{"a", FirstKind, "x"})
	start(t, "f", listen(t), foreign)
	until(t, "a refusal", func() bool { return b.Stats().Refused >= 1 })

	bad := c
	bad.CAFile = bad.KeyFile
	if _, err := New(nil, Config{Addr: ":1", CertFile: bad.CertFile, KeyFile: bad.KeyFile, CAFile: bad.CAFile}, "x", nil); err == nil {
		t.Error("an authority file without a certificate starts")
	}
}
