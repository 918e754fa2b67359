package bearer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

func TestOnlyPublicAddressesAreAsked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"8.8.8.8": true, "93.184.216.34": true, "2606:4700::1111": true, "2a00:1450:4001::1": true,
		"0.0.0.0": false, "0.1.2.3": false, "127.0.0.1": false, "127.255.255.254": false, "10.1.2.3": false,
		"172.16.0.1": false, "172.31.255.255": false, "172.32.0.1": true, "192.168.1.1": false, "192.169.1.1": true,
		"169.254.169.254": false, "100.64.0.1": false, "100.127.255.255": false, "100.128.0.1": true,
		"192.0.0.8": false, "192.0.2.1": false, "192.88.99.1": false, "198.18.0.1": false, "198.19.255.255": false,
		"198.51.100.1": false, "203.0.113.1": false, "224.0.0.1": false, "239.1.1.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "fe80::1": false, "fe80::1%lo": false, "2606:4700::1111%lo": false, "fec0::1": false,
		"fc00::1": false, "fd00:ec2::254": false, "ff02::1": false, "100::1": false,
		"2001::1": false, "2001:db8::1": false, "2002:7f00:1::": false, "3fff::1": false, "4000::1": false,
		"::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::ffff:8.8.8.8": true, "::127.0.0.1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b::808:808": true, "64:ff9b:1::808:808": false,
	} {
		if got := isPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// trap is a server at loopback, with TLS or without, that counts who comes.
type trap struct {
	*httptest.Server
	accepted atomic.Int64
}

func newTrap(t *testing.T, secure bool, h http.HandlerFunc) *trap {
	t.Helper()
	tr := &trap{Server: httptest.NewUnstartedServer(h)}
	tr.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			tr.accepted.Add(1)
		}
	}
	if secure {
		tr.StartTLS()
	} else {
		tr.Start()
	}
	t.Cleanup(tr.Close)
	return tr
}

func (tr *trap) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	if c := tr.Certificate(); c != nil {
		pool.AddCert(c)
	}
	return pool
}

// fetcher trusts the server's certificate, and its network if loopback.
func (tr *trap) fetcher(loopback bool) *Fetcher {
	cfg := FetcherConfig{Roots: tr.roots()}
	if loopback {
		cfg.Networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}
	return NewFetcher(cfg)
}

func answer(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
}

// TestNobodyIsLedIntoOurNetwork: whatever an address looks like, and whatever its name resolves to, nothing that is not
// public is so much as connected to.
func TestNobodyIsLedIntoOurNetwork(t *testing.T) {
	t.Parallel()
	secure, plain := newTrap(t, true, answer("{}")), newTrap(t, false, answer("{}"))
	// Every name is loopback, as after a rebinding.
	strict := NewFetcher(FetcherConfig{Roots: secure.roots(), Resolver: resolverTo(t, netip.MustParseAddr("127.0.0.1"))})
	port := secure.Listener.Addr().(*net.TCPAddr).Port
	for _, address := range []string{
		secure.URL, plain.URL, "https://localhost", "https://127.1", "https://2130706433", "https://0x7f000001", "https://017700000001",
		"https://[::ffff:127.0.0.1]", "https://[::1]", "https://rebound.example", "https://0.0.0.0", "https://127.0.0.1.", "http://rebound.example",
	} {
		if !strings.Contains(address[len("https:"):], ":") || strings.HasSuffix(address, "]") {
			address = fmt.Sprintf("%s:%d", address, port)
		}
		if body, err := strict.KeySet(address)(t.Context()); err == nil {
			t.Errorf("%s: answered %q", address, body)
		}
	}
	for _, address := range []string{
		"file:///etc/passwd", "gopher://127.0.0.1:1/", "ftp://example.com", "https://", "//example.com", "", "https://ann:hunter2@example.com", "%zz",
	} {
		_, err := strict.KeySet(address)(t.Context())
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if a, b := secure.accepted.Load(), plain.accepted.Load(); a+b != 0 {
		t.Errorf("%d and %d connections were made", a, b)
	}
	for scheme, tr := range map[string]*trap{"https": secure, "http": plain} {
		if _, err := tr.fetcher(true).KeySet(tr.URL)(t.Context()); err != nil {
			t.Errorf("%s in a network that the operator lists: %v", scheme, err)
		}
	}
	for _, c := range []*http.Client{strict.secure, strict.plain} {
		if c.Transport.(*http.Transport).Proxy != nil {
			t.Error("a proxy is asked: the address would be its to choose")
		}
	}
}

// TestHTTPIsForListedNetworksOnly: elsewhere whoever sits between could forge keys.
func TestHTTPIsForListedNetworksOnly(t *testing.T) {
	t.Parallel()
	plain := newTrap(t, false, answer("{}"))
	f := NewFetcher(FetcherConfig{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	if _, err := f.KeySet(plain.URL)(t.Context()); err == nil || plain.accepted.Load() != 0 {
		t.Errorf("%v, %d connections", err, plain.accepted.Load())
	}
	// The address is public, and nobody is there to ask: it is refused before.
	f = NewFetcher(FetcherConfig{Resolver: resolverTo(t, netip.MustParseAddr("8.8.8.8"))})
	if _, err := f.KeySet("http://keys.example")(t.Context()); err == nil || !strings.Contains(err.Error(), "not public") {
		t.Errorf("http to a public address: %v", err)
	}
}

func TestAnswersAreBoundedAndNotEchoed(t *testing.T) {
	t.Parallel()
	const inside = "what-stands-inside"
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(bytes.Repeat([]byte(" "), 10<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	elsewhere := newTrap(t, true, answer(inside))
	for rule, c := range map[string]struct {
		handler http.HandlerFunc
		ok      bool
	}{
		"an error": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, inside, 500) }, false},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/"+inside, http.StatusFound)
		}, false},
		"ten MB":     {answer(inside + strings.Repeat(" ", 10<<20)), false},
		"long heads": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat(inside, 10_000)) }, false},
		"a broken end": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(inside))
		}, false},
		"a gzip bomb stays folded": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "" {
				t.Errorf("asked for %q", r.Header.Get("Accept-Encoding"))
			}
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		}, true},
		"a good answer": {answer(inside), true},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			tr := newTrap(t, true, c.handler)
			body, err := tr.fetcher(true).KeySet(tr.URL)(t.Context())
			if (err == nil) != c.ok || len(body) > maxSetBytes {
				t.Errorf("%d bytes, %v", len(body), err)
			}
			if err != nil && strings.Contains(err.Error(), inside) {
				t.Errorf("the error tells what was answered: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		if n := elsewhere.accepted.Load(); n != 0 {
			t.Errorf("the redirect was followed %d times", n)
		}
	})
}

// TestASlowAnswerEndsWithItsTime: a server that drips is left when the time is over.
func TestASlowAnswerEndsWithItsTime(t *testing.T) {
	t.Parallel()
	dripping := make(chan struct{})
	tr := newTrap(t, true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("{"))
		w.(http.Flusher).Flush()
		close(dripping)
		<-r.Context().Done() // the client has gone
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-dripping
		cancel()
	}()
	if _, err := tr.fetcher(true).KeySet(tr.URL)(ctx); err == nil {
		t.Error("an answer without an end was taken")
	}
}

// TestAPeerThatHangsUpRudelyIsRead is W36 of spec/gateway.md 12: there, a fetch failed when the other end closed without the
// farewell of TLS. What is complete by its length is complete.
func TestAPeerThatHangsUpRudelyIsRead(t *testing.T) {
	t.Parallel()
	model := newTrap(t, true, answer("")) // for its certificate
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			c, err := ln.Accept()
			if err != nil {
				return err
			}
			defer c.Close() // the socket, not the TLS session on it
			s := tls.Server(c, model.TLS)
			if _, err := http.ReadRequest(bufio.NewReader(s)); err != nil {
				return err
			}
			_, err = s.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
			return err
		}()
	}()
	body, err := model.fetcher(true).KeySet("https://" + ln.Addr().String())(t.Context())
	if err != nil || string(body) != "{}" {
		t.Errorf("%q, %v", body, err)
	}
	if err := errors.Join(<-served, ln.Close()); err != nil {
		t.Error(err)
	}
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	const set = `{"keys":[]}`
	for rule, c := range map[string]struct {
		issuer string // behind the server's address
		doc    string // %s: the server's address
		ok     bool
	}{
		"at the root":                       {"", `{"issuer":"%[1]s","jwks_uri":"%[1]s/keys"}`, true},
		"below a path":                      {"/realms/a", `{"issuer":"%[1]s/realms/a","jwks_uri":"%[1]s/keys"}`, true},
		"an issuer that ends in a slash":    {"/", `{"issuer":"%[1]s/","jwks_uri":"%[1]s/keys"}`, true},
		"another spelling of the issuer":    {"/", `{"issuer":"%[1]s","jwks_uri":"%[1]s/keys"}`, false},
		"another issuer":                    {"", `{"issuer":"https://login.example","jwks_uri":"%[1]s/keys"}`, false},
		"no issuer":                         {"", `{"jwks_uri":"%[1]s/keys"}`, false},
		"an issuer in capitals":             {"", `{"ISSUER":"%[1]s","jwks_uri":"%[1]s/keys"}`, false},
		"no address of keys":                {"", `{"issuer":"%[1]s"}`, false},
		"keys in a file":                    {"", `{"issuer":"%[1]s","jwks_uri":"file:///etc/passwd"}`, false},
		"keys without TLS":                  {"", `{"issuer":"%[1]s","jwks_uri":"http://8.8.8.8/keys"}`, false},
		"keys in the metadata of the cloud": {"", `{"issuer":"%[1]s","jwks_uri":"https://169.254.169.254/keys"}`, false},
		"no JSON":                           {"", `<html>`, false},
		"a list":                            {"", `[]`, false},
		"too long":                          {"", `{"issuer":"%[1]s","jwks_uri":"%[1]s/keys"}` + strings.Repeat(" ", maxDiscoveryBytes), false},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			var tr *trap
			tr = newTrap(t, true, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case strings.TrimSuffix(c.issuer, "/") + "/.well-known/openid-configuration":
					fmt.Fprintf(w, c.doc, tr.URL)
				case "/keys":
					fmt.Fprint(w, set)
				default:
					http.NotFound(w, r)
				}
			})
			body, err := tr.fetcher(true).Discovered(tr.URL + c.issuer)(t.Context())
			if (err == nil) != c.ok || c.ok && string(body) != set {
				t.Errorf("%q, %v", body, err)
			}
		})
	}
}

// resolverTo answers every question with the address.
func resolverTo(t *testing.T, addr netip.Addr) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for buf := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return // closed
			}
			if reply := dnsReply(buf[:n], addr); reply != nil {
				_, _ = server.WriteTo(reply, from)
			}
		}
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// dnsReply answers a question (RFC 1035, 4) of the type A with the address, and of any other with nothing.
func dnsReply(question []byte, addr netip.Addr) []byte {
	end := 12
	for end < len(question) && question[end] != 0 {
		end += 1 + int(question[end])
	}
	if end += 5; end > len(question) {
		return nil
	}
	reply := bytes.Clone(question[:end])
	copy(reply[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}) // an answer, to one question
	if typeA := reply[end-3] == 1; typeA {
		reply[7] = 1
		ip := addr.As4()
		reply = append(append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4), ip[:]...)
	}
	return reply
}
