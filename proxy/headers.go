package proxy

import (
	"crypto/ed25519"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/tracing"
	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/quota"
	"github.com/queengate/queengate/wire"
)

// A cell token lives tokenLife and is minted anew after tokenRenew, so that what goes out is good for at least the
// difference, whatever the clocks of gateway and broker say about the rest.
const (
	tokenLife  = 120 * time.Second
	tokenRenew = 60 * time.Second
)

// cellToken is a signed statement to a broker as header lines, ready to be copied into a request.
type cellToken struct {
	cluster *plans.Cluster
	lines   []byte // "Authorization: …\r\nX-Queen-Tenant: …\r\n"
	renew   time.Time
}

type tokenKey struct {
	cluster uuid.UUID
	access  wire.Access
	subject string
	blind   bool // payloads are withheld
}

// cellTokens mints and remembers tokens. Safe for concurrent use.
type cellTokens struct {
	key ed25519.PrivateKey

	// mu guards what follows.
	mu    sync.RWMutex
	byKey map[tokenKey]*cellToken
	swept time.Time // when stale tokens were last looked for
}

// Bounds of the remembered tokens. A tenant's issuer has as many subjects as it likes: from sweepTokens on stale ones are
// looked for, not at every minting, and beyond maxTokens a token is minted and not remembered.
const (
	sweepTokens   = 4096
	maxTokens     = 65536
	sweepInterval = 10 * time.Second
)

func newCellTokens(key ed25519.PrivateKey) *cellTokens {
	return &cellTokens{key: key, byKey: map[tokenKey]*cellToken{}}
}

// of returns a token that names the cluster's tenant and caps, the subject, the least access level of a route, and whether
// its bearer is blind to payloads. A changed plan is a new *plans.Cluster, hence a new token.
func (t *cellTokens) of(c *plans.Cluster, access wire.Access, subject string, blind bool, now time.Time) (*cellToken, error) {
	k := tokenKey{c.ID, access, subject, blind}
	t.mu.RLock()
	tok := t.byKey[k]
	t.mu.RUnlock()
	if tok != nil && tok.cluster == c && now.Before(tok.renew) {
		return tok, nil
	}
	claims := wire.CellClaims{
		Subject: subject, Tenant: c.BrokerTenant, Cluster: c.Slug, Access: access, WithholdPayloads: blind, Expires: now.Add(tokenLife),
		RequestsPerSecond: c.Limits.RequestsPerSecond, // whatever its mode: it is the tenant's weight
	}
	if c.Limits.Mode(plans.LimitQueues) == plans.Enforce {
		claims.MaxQueues = c.Limits.MaxQueues
	}
	if c.Limits.Mode(plans.LimitPartitions) == plans.Enforce {
		claims.MaxPartitions = c.Limits.MaxPartitionsPerQueue
	}
	if ceiling := c.Limits.MaxRetentionSeconds; c.Limits.Unbounded != plans.AllowUnbounded && ceiling != nil && *ceiling > 0 &&
		c.Limits.Mode(plans.LimitRetention) == plans.Enforce {
		claims.RetentionCeiling, claims.RefuseUnbounded = ceiling, c.Limits.Unbounded == plans.RefuseUnbounded
	}
	signed, err := wire.SignCell(t.key, c.Cell, claims, now)
	if err != nil {
		return nil, fmt.Errorf("sign for cell %s: %w", c.Cell, err)
	}
	lines := fmt.Appendf(nil, "Authorization: Bearer %s\r\n%s: %s\r\n", signed, wire.HeaderTenant, c.BrokerTenant)
	tok = &cellToken{cluster: c, lines: lines, renew: now.Add(tokenRenew)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byKey) >= sweepTokens && now.Sub(t.swept) >= sweepInterval {
		t.swept = now
		for k, old := range t.byKey {
			if now.After(old.renew) {
				delete(t.byKey, k)
			}
		}
	}
	if _, known := t.byKey[k]; known || len(t.byKey) < maxTokens {
		t.byKey[k] = tok
	}
	return tok, nil
}

// appendHead appends the head of the request a broker gets. Nothing in it is a byte the client sent: path and query
// are written from their parsed form, headers come from an allow-list. wait is the rest of a waiting poll's time, span
// what the broker continues.
func appendHead(dst []byte, ex *exchange, tok *cellToken, span tracing.Span, host string, wait time.Duration, bodyLen int) []byte {
	r := ex.route
	dst = append(dst, r.Method...)
	dst = append(dst, ' ')
	dst = wire.AppendPath(dst, r, ex.params)
	switch {
	case r.Cost == wire.CostDelivery:
		q := ex.pop
		if q.Wait {
			q.Timeout, q.TimeoutGiven = wait, true
		}
		dst = append(dst, '?')
		dst = q.AppendQuery(dst)
	case len(ex.query) > 0:
		dst = append(dst, '?')
		dst, _ = appendQuery(dst, ex.query) // classify has seen that it is well-formed
	}
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, host...)
	dst = append(dst, "\r\n"...)
	dst = append(dst, tok.lines...)
	dst = append(dst, wire.HeaderRequestID+": "...)
	dst = append(dst, ex.id...)
	if span.Exists() {
		dst = append(dst, "\r\ntraceparent: "...)
		dst = span.AppendTraceparent(dst)
	}
	if bodyLen > 0 {
		dst = append(dst, "\r\nContent-Type: application/json"...)
	}
	if bodyLen > 0 || r.Method == fasthttp.MethodPost {
		dst = append(dst, "\r\nContent-Length: "...)
		dst = strconv.AppendInt(dst, int64(bodyLen), 10)
	}
	return append(dst, "\r\n\r\n"...)
}

// names are header names as bytes: they are set on every answer, and fasthttp would normalise a string each time.
var names = struct {
	limitName, limitLimit, limitRemaining, limitReset, limitMode, rateLimitPolicy, rateLimit, draining []byte
}{
	[]byte(wire.HeaderLimitName), []byte(wire.HeaderLimitLimit), []byte(wire.HeaderLimitRemaining),
	[]byte(wire.HeaderLimitReset), []byte(wire.HeaderLimitMode), []byte(wire.HeaderRateLimitPolicy), []byte(wire.HeaderRateLimit),
	[]byte(wire.HeaderDraining),
}

// setLimitHeaders states the limit closest to refusing. A report without a name states nothing: the plan has no limit
// on the route.
func setLimitHeaders(h *fasthttp.ResponseHeader, r *quota.Report) {
	if r.Name == "" {
		return
	}
	limit := int64(max(0, r.Limit))
	remaining := int64(max(0, math.Floor(r.Remaining)))
	reset := int64(math.Ceil(r.Reset.Seconds()))
	mode := "enforce"
	switch {
	case r.Mode == plans.Shadow:
		mode = "shadow"
	case r.Alone:
		mode = "local"
	}
	var room [96]byte
	text := room[:0]
	set := func(name []byte) {
		h.SetCanonical(name, text)
		text = room[:0]
	}
	text = append(text, r.Name...)
	set(names.limitName)
	text = strconv.AppendInt(text, limit, 10)
	set(names.limitLimit)
	text = strconv.AppendInt(text, remaining, 10)
	set(names.limitRemaining)
	text = strconv.AppendInt(text, reset, 10)
	set(names.limitReset)
	text = append(text, mode...)
	set(names.limitMode)

	// Structured fields of the IETF draft: "req";q=120;w=2 and "req";r=118;t=1.
	text = append(append(append(text, '"'), r.Name...), `";q=`...)
	text = strconv.AppendInt(text, limit, 10)
	if w := int64(math.Ceil(r.Window.Seconds())); w > 0 {
		text = append(text, ";w="...)
		text = strconv.AppendInt(text, w, 10)
	}
	set(names.rateLimitPolicy)
	text = append(append(append(text, '"'), r.Name...), `";r=`...)
	text = strconv.AppendInt(text, remaining, 10)
	if reset > 0 {
		text = append(text, ";t="...)
		text = strconv.AppendInt(text, reset, 10)
	}
	set(names.rateLimit)
}
