package bearer

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestAFetchGoesToItsAddressAndNoFurther (S3): whoever holds the address of the keys can neither send us elsewhere nor
// cost us more than a fetch may, and a bad answer leaves the good keys in force.
func TestAFetchGoesToItsAddressAndNoFurther(t *testing.T) {
	t.Parallel()
	var strayed atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		strayed.Add(1)
		w.Write(setOf(jwkOf("k", &pairs().otherRSA.PublicKey)))
	}))
	t.Cleanup(elsewhere.Close)
	to := func(status int, target string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", target)
			w.WriteHeader(status)
		}
	}
	port := elsewhere.URL[strings.LastIndexByte(elsewhere.URL, ':'):]
	bomb := func() []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write(bytes.Repeat([]byte(" "), 64<<20))
		z.Write(setOf(jwkOf("k", &pairs().otherRSA.PublicKey)))
		z.Close()
		return b.Bytes()
	}()
	const brief = 200 * time.Millisecond
	for rule, answer := range map[string]http.HandlerFunc{
		"a redirect to loopback":            to(302, elsewhere.URL),
		"a permanent redirect":              to(301, elsewhere.URL),
		"a redirect that keeps the method":  to(307, elsewhere.URL),
		"a redirect by another name":        to(303, "http://localhost"+port),
		"a redirect to a decimal address":   to(302, "http://2130706433"+port),
		"a redirect to an octal address":    to(302, "http://0177.0.0.1"+port),
		"a redirect to a mapped address":    to(302, "http://[::ffff:127.0.0.1]"+port),
		"a redirect to the link's metadata": to(302, "http://169.254.169.254/latest/meta-data"),
		"a redirect to a file":              to(302, "file:///etc/passwd"),
		"a redirect to gopher":              to(302, "gopher://127.0.0.1"+port),
		"a redirect with a refresh":         func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Refresh", "0;url="+elsewhere.URL) },
		"ten megabytes":                     func(w http.ResponseWriter, _ *http.Request) { w.Write(bytes.Repeat([]byte(" "), 10<<20)) },
		"ten megabytes and keys behind them": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(append(bytes.Repeat([]byte(" "), 10<<20), setOf(jwkOf("k", &pairs().otherRSA.PublicKey))...))
		},
		"a bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(bomb)
		},
		"a slow drip": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.Write([]byte(" "))
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(brief / 10):
				}
			}
		},
		"silence": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"a page":  func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>secret of the inside</html>")) },
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			is := newIssuer(t, setOf(jwkOf("k", &pairs().rsa.PublicKey)))
			r := is.remote(t, nil)
			if got := ask(t, r, "RS256", pairs().rsa, "k", now); got != 0 {
				t.Fatalf("before: reason %d", got)
			}
			is.answers(answer)
			r.cfg.Timeout = brief
			err := r.refresh(t.Context(), now, false)
			if err == nil {
				t.Error("the answer is taken for a key set")
			} else if strings.Contains(err.Error(), "secret of the inside") {
				t.Errorf("the error quotes the answer: %v", err)
			}
			if got := ask(t, r, "RS256", pairs().rsa, "k", now); got != 0 {
				t.Errorf("after: reason %d", got)
			}
		})
	}
	t.Cleanup(func() {
		if n := strayed.Load(); n != 0 {
			t.Errorf("%d fetches went elsewhere", n)
		}
	})
}
