package bearer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// MaxTokenBytes is the length of the longest token that is looked at.
const MaxTokenBytes = 8 << 10

// Leeway bounds: the clock difference that is forgiven to exp, nbf and iat.
const (
	DefaultLeeway = 30 * time.Second
	MaxLeeway     = 5 * time.Minute
)

// Config says which tokens are believed.
type Config struct {
	Algorithms    []string      // accepted; at least one, every other is refused
	Keys          Keys          // where keys come from
	Issuer        string        // when set, "iss" must be it
	Audience      string        // when set, "aud" must be it or contain it
	Leeway        time.Duration // 0..MaxLeeway
	RequireExpiry bool          // refuse tokens without "exp"
}

// Verifier tells genuine tokens from others. Safe for concurrent use.
type Verifier struct{ cfg Config }

// New returns a Verifier, or the problems of the configuration joined.
func New(cfg Config) (*Verifier, error) {
	var errs []error
	if len(cfg.Algorithms) == 0 || cfg.Keys == nil {
		errs = append(errs, errors.New("jwt: want at least one algorithm and keys"))
	}
	for _, alg := range cfg.Algorithms {
		if _, known := sets[alg]; !known || alg == "auto" {
			errs = append(errs, fmt.Errorf("jwt: algorithm %q is not known", alg))
		}
	}
	if cfg.Leeway < 0 || cfg.Leeway > MaxLeeway {
		errs = append(errs, fmt.Errorf("jwt leeway = %s: want 0..%s", cfg.Leeway, MaxLeeway))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Verifier{cfg}, nil
}

// Leeway returns the clock difference that is forgiven: for whoever judges a remembered token's times again.
func (v *Verifier) Leeway() time.Duration { return v.cfg.Leeway }

// Generation is that of the keys.
func (v *Verifier) Generation() uint64 { return v.cfg.Keys.Generation() }

func (v *Verifier) accepts(alg any) bool {
	text, ok := alg.(string)
	return ok && slices.Contains(v.cfg.Algorithms, text)
}

// Verify returns the claims of a token that is genuine and in force at now: exp, nbf and iat count where they stand, with
// the leeway; issuer and audience where they are configured. Every error is a *Refusal. It may block as Keys does.
func (v *Verifier) Verify(token string, now time.Time) (*Claims, error) {
	if len(token) > MaxTokenBytes {
		return nil, Refuse(BadHeader, errors.New("the token is too long"))
	}
	// The library decodes into what the interface points to, and would put nil into the interface for a payload of null:
	// so it does not get to judge the claims by itself.
	c := &dated{}
	parser := jwt.NewParser(jwt.WithValidMethods(v.cfg.Algorithms), jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation())
	t, err := parser.ParseWithClaims(token, c, func(t *jwt.Token) (any, error) { return v.keyOf(t, now) })
	if err != nil {
		return nil, v.refusalOf(t, err)
	}
	if c.raw == nil {
		return nil, Refuse(BadClaims, errors.New("the payload is no JSON object"))
	}
	times := []jwt.ParserOption{jwt.WithLeeway(v.cfg.Leeway), jwt.WithIssuedAt(), jwt.WithTimeFunc(func() time.Time { return now })}
	if v.cfg.RequireExpiry {
		times = append(times, jwt.WithExpirationRequired())
	}
	if err := jwt.NewValidator(times...).Validate(c); err != nil {
		return nil, v.refusalOf(t, err)
	}
	switch {
	case v.cfg.Issuer != "" && c.Issuer != v.cfg.Issuer:
		return nil, Refuse(WrongIssuer, nil)
	case v.cfg.Audience != "" && !slices.Contains(c.Audience, v.cfg.Audience):
		return nil, Refuse(WrongAudience, nil)
	}
	return &c.Claims, nil
}

// keyOf finds the key of a token whose algorithm is accepted, and holds the two together.
func (v *Verifier) keyOf(t *jwt.Token, now time.Time) (any, error) {
	if _, critical := t.Header["crit"]; critical {
		return nil, Refuse(BadHeader, errors.New("critical header extensions are not understood")) // RFC 7515 4.1.11
	}
	var kid string
	if raw, stated := t.Header["kid"]; stated {
		var ok bool
		if kid, ok = raw.(string); !ok || kid == "" {
			return nil, Refuse(BadHeader, errors.New("malformed key id"))
		}
	}
	alg := t.Method.Alg()
	key, err := v.cfg.Keys.Find(kid, alg, now)
	if err != nil {
		return nil, err
	}
	if !key.Fits(alg) {
		return nil, Refuse(UnsupportedAlgorithm, fmt.Errorf("algorithm %s with %s", alg, key.kind()))
	}
	return key.key, nil
}

// Credential returns the credential of an Authorization header: without the word Bearer, in any case, and without
// surrounding blanks. The word is optional.
func Credential(authorization []byte) []byte {
	const scheme = "bearer"
	b := bytes.Trim(authorization, " \t")
	if len(b) > len(scheme) && (b[len(scheme)] == ' ' || b[len(scheme)] == '\t') && bytes.EqualFold(b[:len(scheme)], []byte(scheme)) {
		b = bytes.TrimLeft(b[len(scheme):], " \t")
	}
	return b
}
