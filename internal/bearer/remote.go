package bearer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// RemoteConfig describes keys that are fetched. Zero durations take the defaults named.
type RemoteConfig struct {
	URL        string        // of a JSON Web Key Set; http or https, without user and password
	Algorithms []string      // keys that fit none of them are left out
	Refresh    time.Duration // 1 h: how often the set is fetched again
	Timeout    time.Duration // 5 s for one fetch
	Log        *slog.Logger
}

const (
	defaultRefresh = time.Hour
	defaultTimeout = 5 * time.Second

	// onDemandPause is how long after one fetch a token with an unknown key id causes no other: a flood of made-up ids
	// costs the keys' owner a request every five seconds.
	onDemandPause = 5 * time.Second

	maxSetBytes = 1 << 20
)

// Remote is a set of public keys behind an address. Run keeps it fresh; Find may fetch too. New does no I/O.
type Remote struct {
	cfg    RemoteConfig
	client *http.Client

	set atomic.Pointer[keySet] // nil until the first good fetch

	fetches, failures atomic.Uint64

	mu      sync.Mutex    // guards what follows
	flight  chan struct{} // of the fetch under way, closed when it has ended; nil when there is none
	next    time.Time     // no fetch on demand before it
	failure error         // of the last fetch; nil when it was good
}

// keySet is one fetched set. Immutable.
type keySet struct {
	generation uint64
	body       []byte // as fetched: the same body is the same set
	keys       []Key
}

// NewRemote returns a Remote without keys, or what is wrong with its configuration.
func NewRemote(cfg RemoteConfig) (*Remote, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, errors.New("want an address that begins with https:// or http://")
	case u.User != nil:
		return nil, errors.New("want an address without user and password")
	case cfg.Refresh < 0 || cfg.Timeout < 0:
		return nil, errors.New("want times above 0")
	}
	if cfg.Refresh == 0 {
		cfg.Refresh = defaultRefresh
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Remote{cfg: cfg, client: &http.Client{
		// Where the keys are is the operator's word; the place itself may not send us elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: cfg.Timeout},
	}}, nil
}

// Run fetches the keys at once and then by the interval, a failed fetch sooner: after 5 s, doubling up to the interval. It
// never fails: without keys tokens are refused with KeysUnavailable. It returns when ctx ends.
func (r *Remote) Run(ctx context.Context) error {
	if u, err := url.Parse(r.cfg.URL); err == nil && u.Scheme == "http" {
		r.cfg.Log.Warn("the keys of tokens are fetched without TLS: whoever sits between may forge tokens", "host", u.Host)
	}
	backoff := onDemandPause
	for {
		wait := r.cfg.Refresh - time.Duration(rand.Int64N(int64(r.cfg.Refresh)/10+1)) // a fleet does not ask in step
		if err := r.refresh(ctx, time.Now(), false); err != nil {
			wait = min(backoff, wait)
			backoff *= 2
		} else {
			backoff = onDemandPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Find implements Keys: the first key of the id that fits the algorithm; without an id, the first that fits. One that is
// not there is looked for at the address once more, unless that has just been done; concurrent callers share the fetch.
func (r *Remote) Find(kid, alg string, now time.Time) (Key, error) {
	if k, ok := r.lookup(kid, alg); ok {
		return k, nil
	}
	// The caller has no context of its own: it waits as long as a fetch may take. A failure is logged there and leaves the
	// set as it was.
	_ = r.refresh(context.Background(), now, true)
	if k, ok := r.lookup(kid, alg); ok {
		return k, nil
	}
	if r.set.Load() == nil {
		return Key{}, Refuse(KeysUnavailable, nil)
	}
	return Key{}, Refuse(UnknownKey, nil)
}

// Generation implements Keys; 0 before the first good fetch.
func (r *Remote) Generation() uint64 {
	if s := r.set.Load(); s != nil {
		return s.generation
	}
	return 0
}

// RemoteStats are counts since the start.
type RemoteStats struct {
	Keys              int // in use now
	Fetches, Failures uint64
}

// Stats returns the counts of the moment.
func (r *Remote) Stats() RemoteStats {
	s := RemoteStats{Fetches: r.fetches.Load(), Failures: r.failures.Load()}
	if set := r.set.Load(); set != nil {
		s.Keys = len(set.keys)
	}
	return s
}

func (r *Remote) lookup(kid, alg string) (Key, bool) {
	s := r.set.Load()
	if s == nil {
		return Key{}, false
	}
	for _, k := range s.keys {
		if (kid == "" || k.id == kid) && k.Fits(alg) {
			return k, true
		}
	}
	return Key{}, false
}

// refresh fetches the set, or waits for the fetch under way, and returns how that ended. On demand it does nothing when
// the last fetch began a moment before now.
func (r *Remote) refresh(ctx context.Context, now time.Time, onDemand bool) error {
	r.mu.Lock()
	if flight := r.flight; flight != nil {
		r.mu.Unlock()
		<-flight
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.failure
	}
	if onDemand && now.Before(r.next) {
		defer r.mu.Unlock()
		return r.failure
	}
	done := make(chan struct{})
	r.flight, r.next = done, now.Add(onDemandPause)
	r.mu.Unlock()
	err := r.fetchSet(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteLocked(ctx, err)
	r.flight, r.failure = nil, err
	close(done)
	return err
}

// noteLocked counts a fetch and logs what is news: the first failure of a row, and its end.
func (r *Remote) noteLocked(ctx context.Context, err error) {
	r.fetches.Add(1)
	switch {
	case err == nil:
		if r.failure != nil {
			r.cfg.Log.Info("the keys of tokens are available again")
		}
	case ctx.Err() != nil: // we stop
	default:
		r.failures.Add(1)
		level := slog.LevelDebug
		if r.failure == nil {
			level = slog.LevelWarn
		}
		r.cfg.Log.Log(ctx, level, "the keys of tokens cannot be fetched; those known stay in force", "err", err)
	}
}

// fetchSet replaces the set by what the address answers, if that is another one and good.
func (r *Remote) fetchSet(ctx context.Context) error {
	body, err := r.fetch(ctx)
	if err != nil {
		return err
	}
	old := r.set.Load()
	if old != nil && bytes.Equal(old.body, body) {
		return nil
	}
	keys, skipped, err := parseSet(body, r.cfg.Algorithms)
	if err != nil {
		return err
	}
	fresh := &keySet{generation: 1, body: body, keys: keys}
	if old != nil {
		fresh.generation = old.generation + 1
	}
	r.set.Store(fresh)
	r.cfg.Log.Info("the keys of tokens have changed", "keys", len(keys), "left_out", len(skipped))
	for _, err := range skipped {
		r.cfg.Log.Debug("a key of the set is left out", "err", err)
	}
	return nil
}

func (r *Remote) fetch(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.cfg.URL, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch keys: the answer has status %d", resp.StatusCode) // redirects are not followed
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSetBytes+1))
	if err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	if len(body) > maxSetBytes {
		return nil, fmt.Errorf("fetch keys: the answer is longer than %d bytes", maxSetBytes)
	}
	return body, nil
}
