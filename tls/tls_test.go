package tls

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

// clock is a time that tests move.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

// handshake connects a client to a server and returns what the client saw. It uses a socket, since both sides of a
// failing handshake may write at once, which net.Pipe does not buffer.
func handshake(server, client *tls.Config) (tls.ConnectionState, error) {
	ln, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(io.Discard, c) // the client's side reports the failure that both see
	}()
	c, err := tls.Dial("tcp", ln.Addr().String(), client)
	if err != nil {
		<-done
		return tls.ConnectionState{}, err
	}
	state := c.ConnectionState()
	err = c.Close()
	<-done
	return state, err
}

func trust(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatalf("%s holds no certificate", file)
	}
	return pool
}

func TestTheLocalCertificateIsTrustedForItsNamesOnly(t *testing.T) {
	t.Parallel()
	l, err := OpenLocal(quiet, t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{
		"localhost": true, "demo.localhost": true, "other.localhost": true, "127.0.0.1": true, "::1": true,
		"a.b.localhost": false, "example.com": false, "127.0.0.2": false,
	} {
		_, err := handshake(l.Config(), &tls.Config{ServerName: name, RootCAs: trust(t, l.CAFile())})
		if (err == nil) != ok {
			t.Errorf("%s: got %v, want trusted %t", name, err, ok)
		}
	}
	if st, err := os.Stat(filepath.Join(l.dir, "ca.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("key of the authority: got %v, %v, want mode 0600", st.Mode(), err)
	}
}

func TestTheLocalAuthorityCannotVouchForTheWorld(t *testing.T) {
	t.Parallel()
	l, err := OpenLocal(quiet, t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := l.read("ca")
	if err != nil {
		t.Fatal(err)
	}
	forged, err := l.issue("forged", ca, &x509.Certificate{
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"example.com"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = handshake(&tls.Config{Certificates: []tls.Certificate{*forged}}, &tls.Config{ServerName: "example.com", RootCAs: trust(t, l.CAFile())})
	if err == nil {
		t.Error("a certificate for example.com was trusted")
	}
}

func TestThePolicyOffersOneProtocolAndNoOldVersion(t *testing.T) {
	t.Parallel()
	l, err := OpenLocal(quiet, t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	client := func() *tls.Config {
		return &tls.Config{ServerName: "localhost", RootCAs: trust(t, l.CAFile()), NextProtos: []string{"h2", "http/1.1"}}
	}
	state, err := handshake(l.Config(), client())
	if err != nil || state.NegotiatedProtocol != "http/1.1" {
		t.Errorf("protocol: got %q, %v, want http/1.1", state.NegotiatedProtocol, err)
	}
	old := client()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, err := handshake(l.Config(), old); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
}

func TestTheLocalCertificateIsKeptThenRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &clock{time.Now()}
	serial := func(l *Local) string {
		t.Helper()
		cert, err := l.certificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return cert.Leaf.SerialNumber.String()
	}
	open := func() *Local {
		t.Helper()
		l, err := OpenLocal(quiet, dir, c.now)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	first, ca := serial(l), trust(t, l.CAFile())
	if again := serial(open()); again != first {
		t.Error("a restart made another certificate")
	}
	c.t = c.t.Add(leafLife - renewAt + time.Minute)
	second := serial(l)
	if second == first {
		t.Error("a certificate near its end was not renewed while serving")
	}
	if !trust(t, l.CAFile()).Equal(ca) {
		t.Error("the renewal of a leaf changed the authority")
	}
	if err := os.WriteFile(filepath.Join(dir, "localhost.key"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if third := serial(open()); third == second {
		t.Error("a pair torn by a crash was not replaced")
	}
	c.t = c.t.Add(caLife)
	if l := open(); trust(t, l.CAFile()).Equal(ca) {
		t.Error("an authority at its end was not replaced")
	}
}

func TestAChangedPairIsTakenWhenItIsWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := OpenLocal(quiet, dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := l.read("ca")
	if err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(dir, "localhost.pem"), filepath.Join(dir, "localhost.key")
	c := &clock{time.Now()}
	f, err := OpenFiles(quiet, cert, key, c.now)
	if err != nil {
		t.Fatal(err)
	}
	first, err := f.certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	oldKey, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.makeLeaf(ca)
	if err != nil {
		t.Fatal(err)
	}
	newKey, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	serves := func(want *tls.Certificate, when string) {
		t.Helper()
		got, err := f.certificate(nil)
		if err != nil || !got.Leaf.Equal(want.Leaf) {
			t.Errorf("%s: got serial %v, %v, want %v", when, got.Leaf.SerialNumber, err, want.Leaf.SerialNumber)
		}
	}
	put := func(text []byte, when time.Time) {
		t.Helper()
		if err := os.WriteFile(key, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(key, when, when); err != nil {
			t.Fatal(err)
		}
	}
	put(oldKey, c.t.Add(time.Minute)) // the certificate is new, its key still the old one
	serves(first, "within a second of the last look")
	c.t = c.t.Add(checkEvery)
	serves(first, "with half a pair")
	put(newKey, c.t.Add(2*time.Minute))
	c.t = c.t.Add(checkEvery)
	serves(second, "with the whole pair")
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	c.t = c.t.Add(checkEvery)
	serves(second, "without the file")
}

func TestAPairThatDoesNotLoadIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	_, err := OpenFiles(quiet, "/nonexistent/cert.pem", "/nonexistent/key.pem", time.Now)
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/cert.pem") {
		t.Errorf("got %v, want the file named", err)
	}
}
