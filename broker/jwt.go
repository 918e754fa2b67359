package broker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/wire"
)

// JWT lets clients use a broker by themselves, with tokens of an issuer that the operator trusts (docs/design/broker-jwt.md).
// All belongs to DefaultTenant then, and the tenant header is not read.
type JWT struct {
	Tokens *bearer.Verifier
	Keys   *bearer.Remote // behind Tokens, when keys are fetched: the broker keeps them fresh

	RoleClaim  string // names of the claims that state roles: a text,
	RolesClaim string // and a list of texts. The token's roles are those of both
	Roles      []Role

	// SkipPaths are served without a look at the credential, as if there were no JWT. "/" is that path alone; a longer one
	// that ends in "/" is all below it, any other the path itself, as it stands in the request.
	SkipPaths []string
}

// Role is a word of a token and what it gives. A token may use a route if one of its roles admits it.
type Role struct {
	Word   string
	Access wire.Access
}

// DefaultSkipPaths are those of the existing broker. All of its own that we serve are public anyway.
var DefaultSkipPaths = []string{"/health", "/metrics/prometheus", "/metrics", "/"}

func (j *JWT) validate() error {
	var errs []error
	if j.Tokens == nil {
		errs = append(errs, errors.New("broker.jwt: want a verifier of tokens"))
	}
	if j.RoleClaim == "" && j.RolesClaim == "" {
		errs = append(errs, errors.New("broker.jwt: want the name of a claim with roles"))
	}
	if !slices.ContainsFunc(j.Roles, func(r Role) bool { return r.Word != "" }) {
		errs = append(errs, errors.New("broker.jwt: want a word for at least one role"))
	}
	for _, path := range j.SkipPaths {
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
			errs = append(errs, fmt.Errorf("broker.jwt_skip_paths: %q: want a path that begins with a slash", path))
		}
	}
	return errors.Join(errs...)
}

// client is what a verified token says. Immutable.
type client struct {
	subject    string
	grants     grants
	notBefore  time.Time // zero: none
	expires    time.Time // zero: never
	generation uint64    // of the keys that verified it
}

// grants is a set of wire.Access levels that may be used.
type grants uint8

func (g grants) allow(need wire.Access) bool { return g&(1<<need) != 0 }

// grantsOf returns the levels that a role admits. What is for gateways is the admin's when there is no gateway.
func grantsOf(role wire.Access) (g grants) {
	for need := wire.AccessPublic; need <= wire.AccessInternal; need++ {
		if role.Admits(need) {
			g |= 1 << need
		}
	}
	if role == wire.AccessAdmin {
		g |= 1 << wire.AccessInternal
	}
	return g
}

// clients decides on requests of clients that come with tokens of their own.
type clients struct {
	cfg    *JWT
	grants map[string]grants // by word
	cache  *bearer.Cache[client]
}

func newClients(cfg *JWT) *clients {
	cache, err := bearer.NewCache[client](maxCachedTokens)
	if err != nil {
		panic(err) // the size is ours
	}
	c := &clients{cfg: cfg, grants: map[string]grants{}, cache: cache}
	for _, r := range cfg.Roles {
		if r.Word != "" {
			c.grants[r.Word] |= grantsOf(r.Access)
		}
	}
	return c
}

// Refusals that say nothing of the request are made once.
var (
	errNoCredential   = wire.Errorf(wire.Unauthorized, "Authentication required")
	errTwoCredentials = wire.Errorf(wire.InvalidRequest, "the request carries more than one credential")
	errNoPermission   = wire.Errorf(wire.Forbidden, "Insufficient permissions")
	errTokens         = func() (errs [256]*wire.Error) {
		for _, r := range bearer.Reasons {
			errs[r] = wire.Errorf(wire.Unauthorized, "%v", r)
		}
		errs[bearer.KeysUnavailable] = &wire.Error{Code: wire.KeysUnavailable}
		return errs
	}()
)

// identify returns who asks for a path, or the verdict that refuses. r is nil for a path, or a method, that does not
// exist: it asks for read-write, so that only those who may look around are told. It may wait while keys are fetched.
func (c *clients) identify(h *fasthttp.RequestHeader, path []byte, r *wire.Route, now time.Time) (identity, error) {
	need := wire.AccessReadWrite
	if r != nil {
		need = r.Access
	}
	if need == wire.AccessPublic || c.skips(path) {
		return identity{tenant: DefaultTenant, access: need}, nil
	}
	credential, err := credentialOf(h)
	if err != nil {
		return identity{}, err
	}
	who, err := c.verify(credential, now)
	if err != nil {
		return identity{}, err
	}
	if !who.grants.allow(need) {
		return identity{}, errNoPermission
	}
	return identity{tenant: DefaultTenant, subject: who.subject, access: need}, nil
}

func (c *clients) skips(path []byte) bool {
	for _, skip := range c.cfg.SkipPaths {
		below := len(skip) > 1 && skip[len(skip)-1] == '/' && len(path) >= len(skip) && string(path[:len(skip)]) == skip
		if below || string(path) == skip {
			return true
		}
	}
	return false
}

// credentialOf returns the one credential of a request, without its scheme.
func credentialOf(h *fasthttp.RequestHeader) ([]byte, error) {
	switch sent := h.PeekAll(fasthttp.HeaderAuthorization); len(sent) {
	case 0:
		return nil, errNoCredential
	case 1:
		if credential := bearer.Credential(sent[0]); len(credential) > 0 {
			return credential, nil
		}
		return nil, errNoCredential
	}
	return nil, errTwoCredentials
}

// verify returns the client of a token. A signature is paid for once; time is judged on every use, and keys that have
// changed are asked again, with the comparisons of bearer, so that the first use and the next agree.
func (c *clients) verify(credential []byte, now time.Time) (*client, error) {
	if len(credential) > bearer.MaxTokenBytes {
		return nil, refuse(bearer.Refuse(bearer.BadHeader, errors.New("the token is too long")))
	}
	tokens := c.cfg.Tokens
	generation := tokens.Generation() // before the keys are used: a change meanwhile makes this look old, never new
	if who := c.cache.Get(credential); who != nil && who.generation == generation {
		switch {
		case !who.expires.IsZero() && !now.Before(who.expires.Add(tokens.Leeway())):
			return nil, refuse(bearer.Refuse(bearer.Expired, nil))
		case !who.notBefore.IsZero() && now.Before(who.notBefore.Add(-tokens.Leeway())):
			return nil, refuse(bearer.Refuse(bearer.NotYetValid, nil))
		}
		return who, nil
	}
	token := string(credential)
	claims, err := tokens.Verify(token, now)
	if err != nil {
		return nil, refuse(err)
	}
	who := client{subject: claims.Subject, notBefore: claims.NotBefore, expires: claims.Expires, generation: generation}
	if err := checkSubject(who.subject); err != nil {
		return nil, refuse(bearer.Refuse(bearer.BadClaims, err))
	}
	who.grants = c.grantsOf(claims)
	c.cache.Put(token, who.expires, who)
	return &who, nil
}

// grantsOf collects what the words of both claims give. Words nobody configured give nothing, and so does a claim of
// another form: providers use these names for purposes of their own.
func (c *clients) grantsOf(claims *bearer.Claims) (g grants) {
	if word, err := claims.Text(c.cfg.RoleClaim); err == nil {
		g |= c.grants[word]
	}
	if words, err := claims.Texts(c.cfg.RolesClaim); err == nil {
		for _, word := range words {
			g |= c.grants[word]
		}
	}
	return g
}

// checkSubject holds the producer of messages to what is asked of all names.
func checkSubject(sub string) error {
	if len(sub) > wire.MaxNameBytes || strings.ContainsFunc(sub, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return errors.New("the subject is too long or has control characters")
	}
	return nil
}

// refuse turns a refusal into a verdict, and stays its cause.
func refuse(err error) error {
	var r *bearer.Refusal
	if !errors.As(err, &r) {
		return err
	}
	return errTokens[r.Reason].Because(r)
}
