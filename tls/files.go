package tls

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Files is a certificate chain and its key in two PEM files. When either changes, the pair is read again; a pair that
// does not load or match leaves the last good one in force, so that the two files may be replaced one after the other.
type Files struct {
	log       *slog.Logger
	cert, key string
	now       func() time.Time

	mu      sync.Mutex // guards what follows
	pair    *tls.Certificate
	stamp   [2]stamp // of the files behind pair, or behind the last attempt
	checked time.Time
}

// stamp tells two contents of a file apart without reading it.
type stamp struct {
	size    int64
	changed time.Time
}

// checkEvery bounds how often handshakes look at the files.
const checkEvery = time.Second

// OpenFiles reads the pair; one that does not load or match is an error. now is the clock (time.Now).
func OpenFiles(log *slog.Logger, cert, key string, now func() time.Time) (*Files, error) {
	f := &Files{log: log, cert: cert, key: key, now: now}
	if err := f.reload(); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return f, nil
}

// Config returns a server configuration with the certificate of the files.
func (f *Files) Config() *tls.Config { return config(f.certificate) }

func (f *Files) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now().Sub(f.checked) < checkEvery {
		return f.pair, nil
	}
	if err := f.reload(); err != nil {
		f.log.Warn("the changed certificate is not taken", "err", err)
	}
	return f.pair, nil
}

// reload reads the pair if a file has changed since the last look. Callers but OpenFiles hold mu.
func (f *Files) reload() error {
	f.checked = f.now()
	var seen [2]stamp
	for i, name := range []string{f.cert, f.key} {
		st, err := os.Stat(name)
		if err != nil {
			return err
		}
		seen[i] = stamp{st.Size(), st.ModTime()}
	}
	if f.pair != nil && seen == f.stamp {
		return nil
	}
	f.stamp = seen
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return err
	}
	f.pair = &pair
	f.log.Info("certificate loaded", "file", f.cert, "names", pair.Leaf.DNSNames, "not_after", pair.Leaf.NotAfter)
	return nil
}
