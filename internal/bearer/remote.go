package bearer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
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
	Source     Source        // where the set comes from instead of URL
	Algorithms []string      // keys that fit none of them are left out
	Refresh    time.Duration // 1 h: how often the set is fetched again
	Timeout    time.Duration // 5 s for one fetch
	Pause      time.Duration // 5 s: how long after a fetch a token with an unknown key id causes no other
	MaxAge     time.Duration // how long a set is used after it was last fetched; 0: for good
	Changed    func()        // called after the set in use has changed, without a lock; may be nil
	Log        *slog.Logger
}

// Source fetches a key set. It bounds what it reads, and its errors hold nothing of it.
type Source func(ctx context.Context) ([]byte, error)

const (
	defaultRefresh = time.Hour
	defaultTimeout = 5 * time.Second

	// defaultPause makes a flood of made-up key ids cost the keys' owner a request every five seconds.
	defaultPause = 5 * time.Second

	maxSetBytes = 1 << 20
)

// Remote is a set of public keys behind an address. Run, or whoever calls Tend, keeps it fresh; Find may fetch too. New does
// no I/O. Safe for concurrent use.
type Remote struct {
	cfg RemoteConfig

	set  atomic.Pointer[keySet] // nil until the first good fetch
	good atomic.Int64           // when the last good fetch began, in nanoseconds since 1970

	fetches, failures atomic.Uint64

	mu      sync.Mutex    // guards what follows
	flight  chan struct{} // of the fetch under way, closed when it has ended; nil when there is none
	next    time.Time     // no fetch on demand before it
	due     time.Time     // of the next fetch by the interval; zero: at once
	backoff time.Duration // until the fetch after the next failure
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
	if cfg.Source == nil {
		u, err := url.Parse(cfg.URL)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return nil, errors.New("want an address that begins with https:// or http://")
		case u.User != nil:
			return nil, errors.New("want an address without user and password")
		}
	}
	if cfg.Refresh < 0 || cfg.Timeout < 0 || cfg.Pause < 0 || cfg.MaxAge < 0 {
		return nil, errors.New("want times above 0")
	}
	cfg.Refresh = cmp.Or(cfg.Refresh, defaultRefresh)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.Pause = cmp.Or(cfg.Pause, defaultPause)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Source == nil {
		client := &http.Client{
			// Where the keys are is the operator's word; the place itself may not send us elsewhere.
			CheckRedirect: noRedirects,
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: cfg.Timeout},
		}
		cfg.Source = func(ctx context.Context) ([]byte, error) { return get(ctx, client, cfg.URL, maxSetBytes) }
	}
	return &Remote{cfg: cfg, backoff: cfg.Pause}, nil
}

// Run fetches the keys at once and then by the interval, a failed fetch sooner: after the pause, doubling up to the
// interval. It never fails: without keys tokens are refused with KeysUnavailable. It returns when ctx ends.
func (r *Remote) Run(ctx context.Context) error {
	if u, err := url.Parse(r.cfg.URL); err == nil && u.Scheme == "http" {
		r.cfg.Log.Warn("the keys of tokens are fetched without TLS: whoever sits between may forge tokens", "host", u.Host)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(r.Tend(ctx, time.Now()))):
		}
	}
}

// Tend fetches the keys if that is due at now, by the interval or after a failure, and returns when it is due next. It
// blocks for one fetch at most.
func (r *Remote) Tend(ctx context.Context, now time.Time) (due time.Time) {
	r.mu.Lock()
	due = r.due
	r.mu.Unlock()
	if !now.Before(due) {
		// A failure is logged there and makes the next one due sooner.
		_ = r.refresh(ctx, now, false)
		r.mu.Lock()
		due = r.due
		r.mu.Unlock()
	}
	return due
}

// Find implements Keys: the first key of the id that fits the algorithm; without an id, the first that fits. One that is
// not there is looked for at the address once more, unless that has just been done; concurrent callers share the fetch.
func (r *Remote) Find(kid, alg string, now time.Time) (Key, error) {
	k, err := r.find(kid, alg, now)
	if err == nil {
		return k, nil
	}
	// The caller has no context of its own: it waits as long as a fetch may take. A failure is logged there and leaves the
	// set as it was.
	_ = r.refresh(context.Background(), now, true)
	return r.find(kid, alg, now)
}

// Known returns the keys that are there, without a look at the address: for who must not wait.
func (r *Remote) Known() Keys { return known{r} }

type known struct{ *Remote }

// Find implements Keys; it does not block.
func (k known) Find(kid, alg string, now time.Time) (Key, error) { return k.find(kid, alg, now) }

func (r *Remote) find(kid, alg string, now time.Time) (Key, error) {
	if !r.Usable(now) {
		return Key{}, Refuse(KeysUnavailable, nil)
	}
	for _, k := range r.set.Load().keys {
		if (kid == "" || k.id == kid) && k.Fits(alg) {
			return k, nil
		}
	}
	return Key{}, Refuse(UnknownKey, nil)
}

// Usable reports whether there is a set, and one that is not too old at now.
func (r *Remote) Usable(now time.Time) bool {
	return r.set.Load() != nil && (r.cfg.MaxAge == 0 || now.UnixNano()-r.good.Load() <= int64(r.cfg.MaxAge))
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
	r.flight, r.next = done, now.Add(r.cfg.Pause)
	r.mu.Unlock()
	changed, err := r.fetchSet(ctx)
	if err == nil {
		r.good.Store(now.UnixNano())
	}
	r.mu.Lock()
	r.noteLocked(ctx, err)
	r.flight, r.failure = nil, err
	if err == nil {
		r.due = now.Add(r.cfg.Refresh - time.Duration(rand.Int64N(int64(r.cfg.Refresh)/10+1))) // a fleet does not ask in step
		r.backoff = r.cfg.Pause
	} else {
		r.due = now.Add(min(r.backoff, r.cfg.Refresh))
		r.backoff = min(2*r.backoff, r.cfg.Refresh)
	}
	close(done)
	r.mu.Unlock()
	if changed && r.cfg.Changed != nil {
		r.cfg.Changed()
	}
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

// fetchSet replaces the set by what the source answers, if that is another one and good.
func (r *Remote) fetchSet(ctx context.Context) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	body, err := r.cfg.Source(ctx)
	if err != nil {
		return false, fmt.Errorf("fetch keys: %w", err)
	}
	old := r.set.Load()
	if old != nil && bytes.Equal(old.body, body) {
		return false, nil
	}
	keys, skipped, err := parseSet(body, r.cfg.Algorithms)
	if err != nil {
		return false, err
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
	return true, nil
}
