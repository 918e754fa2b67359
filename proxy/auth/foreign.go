package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

// ForeignConfig says how the keys of tenants' issuers are fetched. Zero durations take the defaults named.
type ForeignConfig struct {
	Fetcher *bearer.Fetcher // what may be asked
	Refresh time.Duration   // 15 min: how often the keys of an issuer in use are fetched again
	MaxAge  time.Duration   // 24 h: how long they are used while they cannot be fetched; at least Refresh
	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: none
}

const (
	defaultIssuerRefresh = 15 * time.Minute
	defaultIssuerMaxAge  = 24 * time.Hour

	// issuerPause is how long after one fetch a token with an unknown key id causes no other. Other services share the
	// issuer with us.
	issuerPause = 10 * time.Second
	// issuerTimeout bounds one fetch, discovery included, and with it the wait of the tokens that caused it.
	issuerTimeout = 5 * time.Second
	// inUse is how long after its last token an issuer's keys are still kept fresh.
	inUse = time.Hour
	// tendInterval is how often one looks which keys are due, and tendAtOnce how many are fetched side by side: issuers
	// that answer slowly hold up few others.
	tendInterval = 5 * time.Second
	tendAtOnce   = 32
)

// sources are the keys of the tenants' issuers that have been used. Safe for concurrent use.
type sources struct {
	cfg     ForeignConfig
	changed func()
	metrics *sourceMetrics

	mu    sync.Mutex // guards byKey
	byKey map[sourceKey]*source
}

// sourceKey is what keys depend on. An issuer whose rules or audience change keeps its keys.
type sourceKey struct {
	issuer                   uuid.UUID
	url, keysURL, algorithms string
}

// source is the keys of one issuer.
type source struct {
	keys *bearer.Remote
	used atomic.Int64 // nanoseconds since 1970, to the minute
}

func newSources(cfg ForeignConfig) *sources {
	if cfg.Refresh == 0 {
		cfg.Refresh = defaultIssuerRefresh
	}
	if cfg.MaxAge == 0 {
		cfg.MaxAge = defaultIssuerMaxAge
	}
	cfg.MaxAge = max(cfg.MaxAge, cfg.Refresh)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ss := &sources{cfg: cfg, metrics: newSourceMetrics(), byKey: map[sourceKey]*source{}}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(ss)
	}
	return ss
}

// of returns the source of an issuer's keys. It does no I/O.
func (ss *sources) of(i *plans.Issuer) (*source, error) {
	k := sourceKey{i.ID, i.URL, i.KeysURL, strings.Join(i.Algorithms, " ")}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.byKey[k]; s != nil {
		return s, nil
	}
	fetch := ss.cfg.Fetcher.KeySet(i.KeysURL)
	if i.KeysURL == "" {
		fetch = ss.cfg.Fetcher.Discovered(i.URL)
	}
	keys, err := bearer.NewRemote(bearer.RemoteConfig{
		Source: ss.metrics.counting(fetch), Algorithms: i.Algorithms, Refresh: ss.cfg.Refresh, MaxAge: ss.cfg.MaxAge, Pause: issuerPause,
		Timeout: issuerTimeout, Changed: ss.keysChanged, Log: ss.cfg.Log.With("tenant_id", i.Tenant, "issuer", i.URL),
	})
	if err != nil {
		return nil, err
	}
	s := &source{keys: keys}
	ss.byKey[k] = s
	return s, nil
}

func (ss *sources) keysChanged() {
	if ss.changed != nil {
		ss.changed()
	}
}

// run keeps the keys of issuers in use fresh, and forgets those of issuers that nobody uses, until ctx ends.
func (ss *sources) run(ctx context.Context) {
	tick := time.NewTicker(tendInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			ss.tend(ctx, now)
		}
	}
}

func (ss *sources) tend(ctx context.Context, now time.Time) {
	ss.forget(now)
	var fetching errgroup.Group
	fetching.SetLimit(tendAtOnce)
	for _, s := range ss.inUse(now) {
		fetching.Go(func() error {
			s.keys.Tend(ctx, now)
			return nil
		})
	}
	// No member fails.
	_ = fetching.Wait()
}

// forget drops the sources whose keys are of no use any more: of issuers that are gone, and of those without a token for as
// long as keys are used.
func (ss *sources) forget(now time.Time) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	maps.DeleteFunc(ss.byKey, func(_ sourceKey, s *source) bool { return s.idle(now) > ss.cfg.MaxAge })
}

// inUse returns the sources whose keys should be fresh.
func (ss *sources) inUse(now time.Time) []*source {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var used []*source
	for _, s := range ss.byKey {
		if s.idle(now) < inUse {
			used = append(used, s)
		}
	}
	return used
}

// idle is for how long no token of the issuer has come.
func (s *source) idle(now time.Time) time.Duration { return now.Sub(time.Unix(0, s.used.Load())) }

// usable counts the sources in use by whether their keys can be used.
func (ss *sources) usable(now time.Time) (yes, no int) {
	for _, s := range ss.inUse(now) {
		if s.keys.Usable(now) {
			yes++
		} else {
			no++
		}
	}
	return yes, no
}

// touch notes that a token of the issuer is used.
func (s *source) touch(now time.Time) {
	if at := now.UnixNano(); at-s.used.Load() > int64(time.Minute) {
		s.used.Store(at)
	}
}

// stillServes reports whether the keys are those of that generation, and not too old. It notes the use.
func (s *source) stillServes(generation uint64, now time.Time) bool {
	s.touch(now)
	return s.keys.Generation() == generation && s.keys.Usable(now)
}

// parseForeign verifies a token by an issuer of the request's tenant.
func (v *Verifier) parseForeign(i *plans.Issuer, token string, r *Request) (*session, error) {
	src, err := v.foreign.of(i)
	if err != nil {
		return nil, err
	}
	src.touch(r.Now)
	keys := bearer.Keys(src.keys)
	if r.Prompt {
		keys = src.keys.Known()
	}
	tokens, err := bearer.New(bearer.Config{
		Algorithms: i.Algorithms, Keys: keys, Issuer: i.URL, Audience: i.Audience, Leeway: v.leeway, RequireExpiry: true,
	})
	if err != nil {
		return nil, err
	}
	generation := keys.Generation() // before the keys are used: a change meanwhile makes this look old, never new
	c, err := tokens.Verify(token, r.Now)
	if err != nil {
		return nil, err
	}
	s := v.newSession(c)
	s.principal.JTI = issuedID(i, c.ID)
	f := &Foreign{Issuer: i, Subject: c.Subject, source: src, generation: generation}
	if c.Subject == "" || len(i.Name)+1+len(c.Subject) > wire.MaxNameBytes || strings.ContainsFunc(c.Subject, isControl) {
		return nil, errors.New("sub is missing, too long or has control characters")
	}
	for n := range i.Rules {
		if rule := &i.Rules[n]; slices.Contains(c.Values(rule.Claim), rule.Value) {
			f.Rules = append(f.Rules, rule)
		}
	}
	s.principal.Foreign = f
	return s, nil
}

// issuedID is what a token of an issuer is revoked under (queengate.revoke_issuer_token): an id is its issuer's, and as
// long as it likes.
func issuedID(i *plans.Issuer, jti string) string {
	if jti == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(jti))
	return i.ID.String() + " " + hex.EncodeToString(sum[:])
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }
