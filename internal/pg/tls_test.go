package pg_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/queengate/queengate/internal/pg"
	"github.com/queengate/queengate/internal/pgtest"
)

// authority is a certificate authority of one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	PEM  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.PEM = encode("CERTIFICATE", der)
	return a
}

// issue returns a server's certificate for the host, and its key.
func (a *authority) issue(host string) (cert, key string) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", private)
}

func encode(kind string, der []byte) string {
	var b bytes.Buffer
	if err := pem.Encode(&b, &pem.Block{Type: kind, Bytes: der}); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.String()
}

func TestSessionsAreProtectedAsTheSettingsSay(t *testing.T) {
	t.Parallel()
	right, wrong := newAuthority(t), newAuthority(t)
	cert, key := right.issue("localhost")
	secure := pgtest.NewServer(t, map[string]string{
		"server.crt": cert, "server.key": key, "pg_hba.conf": "hostssl all all 127.0.0.1/32 trust\nlocal all all trust\n",
	}, "ssl=on")
	plain := pgtest.NewServer(t, nil)
	at := func(s *pgtest.Server, host string) string {
		return fmt.Sprintf("postgres://postgres@%s:%d/postgres", host, s.Port)
	}
	both := fmt.Sprintf("postgres://postgres@localhost:%d,localhost:%d/postgres", plain.Port, secure.Port)
	for rule, tc := range map[string]struct {
		c    pg.Config
		want string // part of the error; "" a session over TLS, "plain" one without
	}{
		"the right authority":                   {pg.Config{DSN: at(secure, "localhost"), TLS: pg.TLSVerify, CA: right.PEM}, ""},
		"an authority alone demands it":         {pg.Config{DSN: at(secure, "localhost"), CA: right.PEM}, ""},
		"one of two authorities":                {pg.Config{DSN: at(secure, "localhost"), CA: wrong.PEM + right.PEM}, ""},
		"the wrong authority":                   {pg.Config{DSN: at(secure, "localhost"), TLS: pg.TLSVerify, CA: wrong.PEM}, "unknown authority"},
		"the system's authorities":              {pg.Config{DSN: at(secure, "localhost"), TLS: pg.TLSVerify}, "unknown authority"},
		"another host name":                     {pg.Config{DSN: at(secure, "127.0.0.1"), TLS: pg.TLSVerify, CA: right.PEM}, "doesn't contain any IP SANs"},
		"whoever it is":                         {pg.Config{DSN: at(secure, "127.0.0.1"), TLS: pg.TLSInsecure}, ""},
		"in the clear, where TLS is demanded":   {pg.Config{DSN: at(secure, "localhost"), TLS: pg.TLSOff}, "no encryption"},
		"demanded, where there is none":         {pg.Config{DSN: at(plain, "localhost"), TLS: pg.TLSInsecure}, "server refused TLS"},
		"verified, where there is none":         {pg.Config{DSN: at(plain, "localhost"), CA: right.PEM}, "server refused TLS"},
		"in the clear":                          {pg.Config{DSN: at(plain, "localhost"), TLS: pg.TLSOff}, "plain"},
		"what the address says":                 {pg.Config{DSN: at(secure, "localhost") + "?sslmode=require"}, ""},
		"key=value text":                        {pg.Config{DSN: fmt.Sprintf("host=localhost port=%d user=postgres dbname=postgres", secure.Port), CA: right.PEM}, ""},
		"the second of two hosts":               {pg.Config{DSN: both, CA: right.PEM}, ""},
		"the first of two hosts, in the clear":  {pg.Config{DSN: both, TLS: pg.TLSOff}, "plain"},
		"two hosts, none with what is demanded": {pg.Config{DSN: both, CA: wrong.PEM}, "unknown authority"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			tc.c.MaxConn = 1
			pool := open(t, tc.c)
			var encrypted bool
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := pool.QueryRow(ctx, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted)
			switch {
			case tc.want == "" || tc.want == "plain":
				if err != nil || encrypted != (tc.want == "") {
					t.Errorf("got encrypted %v, %v", encrypted, err)
				}
			case err == nil || !strings.Contains(err.Error(), tc.want):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestContradictionsAboutTLSAreRefusedWithoutQuotingTheAddress(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	_, key := ca.issue("localhost")
	const url, text = "postgres://u:hunter2@h/db", "host=h password='hunter2 sslmode=x' user=u"
	for rule, tc := range map[string]struct {
		c    pg.Config
		want string // "" accepted
	}{
		"two modes":                           {pg.Config{DSN: url + "?sslmode=disable", TLS: pg.TLSVerify}, "sslmode=disable and the settings say tls = verify"},
		"two modes in text":                   {pg.Config{DSN: text + " sslmode=require", TLS: pg.TLSOff}, "want one of them"},
		"the same mode twice":                 {pg.Config{DSN: url + "?sslmode=verify-full", TLS: pg.TLSVerify}, ""},
		"the same mode twice in text":         {pg.Config{DSN: text + " sslmode = 'require'", TLS: pg.TLSInsecure}, ""},
		"a mode inside a value is none":       {pg.Config{DSN: text, TLS: pg.TLSVerify}, ""},
		"another parameter stays":             {pg.Config{DSN: url + "?connect_timeout=3", TLS: pg.TLSVerify}, ""},
		"an authority nobody would look at":   {pg.Config{DSN: url, TLS: pg.TLSInsecure, CA: ca.PEM}, "does not look at it"},
		"an authority and no TLS":             {pg.Config{DSN: url, TLS: pg.TLSOff, CA: ca.PEM}, "does not look at it"},
		"an authority and a weaker address":   {pg.Config{DSN: url + "?sslmode=prefer", CA: ca.PEM}, "sslmode=prefer"},
		"an authority twice":                  {pg.Config{DSN: url + "?sslrootcert=/x", CA: ca.PEM}, "given twice"},
		"a mode that does not exist":          {pg.Config{DSN: url, TLS: "maybe"}, "tls = maybe"},
		"a socket that should have TLS":       {pg.Config{DSN: "host=/tmp user=u password=hunter2", TLS: pg.TLSVerify}, "Unix socket"},
		"a socket among hosts":                {pg.Config{DSN: "host=h,/tmp user=u password=hunter2", TLS: pg.TLSVerify}, "Unix socket"},
		"a socket without":                    {pg.Config{DSN: "host=/tmp user=u password=hunter2", TLS: pg.TLSOff}, ""},
		"text that is no PEM":                 {pg.Config{DSN: url, CA: "/etc/ca.pem"}, "is not PEM"},
		"PEM that is cut off":                 {pg.Config{DSN: url, CA: ca.PEM + ca.PEM[:100]}, "is not PEM"},
		"a key among the certificates":        {pg.Config{DSN: url, CA: ca.PEM + key}, "holds a private key"},
		"a certificate that is none":          {pg.Config{DSN: url, CA: encode("CERTIFICATE", []byte("x"))}, "certificate 1"},
		"an address that cannot be parsed":    {pg.Config{DSN: "postgres://u:hunter2%zz@h", TLS: pg.TLSOff}, "cannot be parsed"},
		"several hosts":                       {pg.Config{DSN: "postgres://u:hunter2@a:1,b:2/db?target_session_attrs=read-write", CA: ca.PEM}, ""},
		"several hosts in text, with failure": {pg.Config{DSN: "host=a,b port=1,2 sslmode=allow", TLS: pg.TLSVerify}, "sslmode=allow"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			pc, err := pg.Parse(tc.c)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(pc.ConnConfig.Password+"hunter2", "hunter2") {
					t.Errorf("the password became %q", pc.ConnConfig.Password)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want %q and no secret", err, tc.want)
			}
		})
	}
}

func TestSeveralHostsKeepTheirOwnNames(t *testing.T) {
	t.Parallel()
	pc, err := pg.Parse(pg.Config{DSN: "postgres://u@a:1,b:2/db?connect_timeout=3", CA: newAuthority(t).PEM})
	if err != nil {
		t.Fatal(err)
	}
	c := pc.ConnConfig
	if c.Host != "a" || c.Port != 1 || c.TLSConfig.ServerName != "a" || len(c.Fallbacks) != 1 || c.ConnectTimeout != 3*time.Second {
		t.Fatalf("got %s:%d for %q and %d more", c.Host, c.Port, c.TLSConfig.ServerName, len(c.Fallbacks))
	}
	if b := c.Fallbacks[0]; b.Host != "b" || b.Port != 2 || b.TLSConfig.ServerName != "b" || b.TLSConfig.RootCAs == nil || b.TLSConfig.InsecureSkipVerify {
		t.Errorf("got %s:%d for %q", b.Host, b.Port, b.TLSConfig.ServerName)
	}
}
