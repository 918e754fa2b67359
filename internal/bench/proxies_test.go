package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/queengate/queengate/internal/launch"
	"github.com/queengate/queengate/wire"
)

// The upstream of the tests is a process too: this one again.
func TestMain(m *testing.M) {
	if os.Getenv(upstreamVariable)+os.Getenv(bareVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// proxyWorld is as much of a world as proxies of others need.
func proxyWorld(t *testing.T) *world {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	roots := x509.NewCertPool()
	for file, block := range map[string]*pem.Block{
		"localhost.pem": {Type: "CERTIFICATE", Bytes: certificate}, "localhost.key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		text := pem.EncodeToMemory(block)
		roots.AppendCertsFromPEM(text)
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &world{
		up:         &launch.Process{Credentials: launch.Credentials{CAFile: filepath.Join(dir, "ca.pem")}},
		gatewayTLS: &target{tls: &tls.Config{RootCAs: roots, ServerName: "localhost"}},
		tenants:    tenants{busy: "Authorization: Bearer busy\r\n", spent: "Authorization: Bearer spent\r\n"},
	}
}

func TestRivalsPassPushesHoldPollsAndRefuseWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	w := proxyWorld(t)
	for _, c := range []struct {
		scene
		refused int // status of the second push of a tenant without a rate
		members int // processes
	}{
		{scene{}, 201, 0},
		{scene{proxy: "nginx"}, 429, 1 + runtime.NumCPU()},
		{scene{proxy: "haproxy"}, 429, 1},
		{scene{proxy: "caddy"}, 201, 1},
		{scene{proxy: "bare"}, 201, 1},
	} {
		for _, plain := range []bool{false, true} {
			for _, spent := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s plain=%v spent=%v", c.proxy, plain, spent), func(t *testing.T) {
					t.Parallel()
					if c.proxy != "" {
						if _, err := rivals[c.proxy].program(); err != nil {
							t.Skip(err)
						}
					}
					s := c.scene
					s.plain, s.spent = plain, spent
					_, err := w.on(s, func(ctx context.Context, st *stage, _ time.Duration) (sample, error) {
						return sample{}, pushesAndPolls(ctx, st, spent, c.refused, c.members)
					})(t.Context(), 0)
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

func pushesAndPolls(ctx context.Context, st *stage, spent bool, refused, members int) error {
	if len(st.proxy) != members {
		return fmt.Errorf("%d processes, want %d", len(st.proxy), members)
	}
	c, err := st.target.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	request := st.target.push1KB()
	if _, body, ok := strings.Cut(string(request), "\r\n\r\n"); !ok || len(body) != proxyBody {
		return fmt.Errorf("the body has %d bytes", len(body))
	}
	first, _, err := c.do(request) // of a rate that is spent, perhaps the last
	if err != nil {
		return err
	}
	want := 201
	if spent {
		want = refused
	} else if first != 201 {
		return fmt.Errorf("the first push: %d", first)
	}
	for range 3 {
		if err := c.expect(want, "push", request); err != nil {
			return err
		}
	}
	if spent || st.deaf {
		return nil
	}
	if _, err := c.Write(st.target.get("/api/v1/pop/queue/q?wait=true&timeout=1000")); err != nil {
		return err
	}
	for _, want := range []int{1, 0} {
		for {
			n, err := st.held()
			if err != nil {
				return err
			}
			if n == want {
				break
			}
			if err := settle(ctx, time.Millisecond); err != nil {
				return fmt.Errorf("%d polls are held, want %d: %w", n, want, err)
			}
		}
		c.Close() // and then the upstream holds none
	}
	return nil
}

func TestTheUpstreamAnswersAGatewaysQuestions(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	if err := ours.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	u := &upstream{}
	ended := make(chan error, 1)
	go func() { ended <- u.converse(theirs) }()
	c := &conn{Conn: ours, in: make([]byte, 0, 64)}
	tenant := uuid.New()
	question, err := json.Marshal(wire.UsageQuestion{Tenants: []uuid.UUID{tenant}})
	if err != nil {
		t.Fatal(err)
	}
	asked := fmt.Sprintf("POST /internal/v1/tenants/usage HTTP/1.1\r\nHOST: h\r\ncontent-LENGTH: %d\r\n\r\n%s", len(question), question)
	ask := func(request string, status int, into any) {
		t.Helper()
		got, body, err := c.do([]byte(request))
		if err == nil {
			err = json.Unmarshal(body, into)
		}
		if err != nil || got != status {
			t.Fatalf("%q: %d %s: %v", request, got, body, err)
		}
	}
	var any any
	ask("GET /livez HTTP/1.1\r\n\r\n", 200, &any)
	ask("GET /readyz HTTP/1.1\r\n\r\n", 200, &any)
	page := wire.NamesPage{More: true}
	if ask("GET /internal/v1/tenants/"+tenant.String()+"/names?limit=2 HTTP/1.1\r\n\r\n", 200, &page); page.Names == nil || page.More {
		t.Errorf("names: %+v", page)
	}
	var usage wire.UsageAnswer
	if ask(asked, 200, &usage); len(usage.Tenants) != 1 || usage.Tenants[0].Tenant != tenant || usage.Tenants[0].ComputedAt.IsZero() {
		t.Errorf("usage: %+v", usage)
	}
	ask("POST /api/v1/push HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", 201, &any)
	ask("GET "+heldPath+" HTTP/1.1\r\n\r\n", 200, &any)
	ours.Close()
	<-ended
}

// One worker calls ten times a second; the call due first in the window takes as long as it says and the others 10 ms. What
// was due meanwhile waited, and is called even when the window has ended.
func TestAnEvenRateCountsTheWaitForALateAnswer(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ takes, p50, p99 time.Duration }{
		// 750, 660, 570, 480, 390, 300, 210, 120, 30 and 10 ms.
		{750 * time.Millisecond, 390 * time.Millisecond, 750 * time.Millisecond},
		// 2,000, 1,910, 1,820, … and 1,190 ms.
		{2 * time.Second, 1640 * time.Millisecond, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			st := &stage{profile: unprofiled}
			s, err := st.measure(t.Context(), time.Second, calls{workers: 1, perSecond: 10, call: func(int) error {
				if time.Since(began) == settleIn {
					time.Sleep(x.takes)
					return nil
				}
				time.Sleep(10 * time.Millisecond)
				return nil
			}})
			if err != nil || s.rate != 10 || s.p50 != x.p50 || s.p99 != x.p99 {
				t.Errorf("%v: %.1f a second, p50 %v, p99 %v, want 10, %v, %v: %v", x.takes, s.rate, s.p50, s.p99, x.p50, x.p99, err)
			}
		})
	}
}

func TestALoadCountsWhatBeginsAndEndsInTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &stage{profile: unprofiled}
		s, err := st.measure(t.Context(), time.Second, calls{workers: 2, call: func(int) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		}})
		if err != nil || s.rate != 20 || s.p50 != 100*time.Millisecond {
			t.Errorf("%.1f a second, p50 %v, want 20, 100ms: %v", s.rate, s.p50, err)
		}
		broken := errors.New("broken")
		if _, err := st.measure(t.Context(), time.Second, calls{workers: 2, call: func(i int) error {
			time.Sleep(time.Duration(1+i) * time.Millisecond)
			if i == 1 {
				return broken
			}
			return nil
		}}); !errors.Is(err, broken) || strings.Contains(err.Error(), "canceled") {
			t.Errorf("a call failed, and the load says: %v", err)
		}
	})
}
