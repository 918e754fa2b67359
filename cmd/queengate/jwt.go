package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/queengate/queengate/broker"
	"github.com/queengate/queengate/internal/bearer"
	"github.com/queengate/queengate/internal/conf"
	"github.com/queengate/queengate/wire"
)

// jwtConfig are the settings of clients that use a broker by themselves, with tokens.
type jwtConfig struct {
	Enabled       bool
	Algorithm     string
	Secret        conf.Secret
	PublicKey     string
	JWKSURL       string
	JWKSRefresh   time.Duration
	JWKSTimeout   time.Duration
	Issuer        string
	Audience      string
	ClockSkew     time.Duration
	RequireExpiry bool
	RoleClaim     string
	RolesClaim    string
	Admin         string
	ReadWrite     string
	ReadOnly      string
	WriteOnly     string
	SkipPaths     []string
}

func defaultJWT() jwtConfig {
	return jwtConfig{
		Algorithm: "HS256", JWKSRefresh: time.Hour, JWKSTimeout: 5 * time.Second, ClockSkew: bearer.DefaultLeeway,
		RoleClaim: "role", RolesClaim: "roles",
		Admin: "admin", ReadWrite: "read-write", ReadOnly: "read-only", WriteOnly: "write-only",
		SkipPaths: slices.Clone(broker.DefaultSkipPaths),
	}
}

func (c *jwtConfig) declare(s *conf.Set) {
	s.Section("broker", "Broker: clients of its own. With tokens (JWTs) they use a broker without a gateway; broker.tenancy must be off.", "broker")
	s.Bool(&c.Enabled, "jwt_enabled", "Ask every request for a token.", conf.Env("JWT_ENABLED"))
	s.Enum(&c.Algorithm, "jwt_algorithm", "Algorithms that are accepted: the one named; RS256 with its whole family; auto for HS256, HS384, HS512, RS256, RS384, RS512 and EdDSA, as far as there are keys.",
		bearer.AlgorithmSets(), conf.Env("JWT_ALGORITHM"))
	s.Secret(&c.Secret, "jwt_secret", "Shared secret of the HS algorithms, at least 32 bytes.", conf.Env("JWT_SECRET"))
	s.String(&c.PublicKey, "jwt_public_key", "Public key of the other algorithms as PEM text, for all key ids; it goes before the set of keys.", conf.Env("JWT_PUBLIC_KEY"))
	s.String(&c.JWKSURL, "jwt_jwks_url", "Address of the issuer's set of public keys (JWKS).", conf.Env("JWT_JWKS_URL"))
	s.Duration(&c.JWKSRefresh, "jwt_jwks_refresh", "How often the set is fetched; an unknown key id has it fetched at once, every five seconds at most.",
		time.Second, 7*24*time.Hour, seconds("JWT_JWKS_REFRESH_INTERVAL", time.Second))
	s.Duration(&c.JWKSTimeout, "jwt_jwks_timeout", "For one fetch.", 10*time.Millisecond, time.Minute, milliseconds("JWT_JWKS_TIMEOUT_MS", 10*time.Millisecond))
	s.String(&c.Issuer, "jwt_issuer", "Issuer that tokens must have; without one, any.", conf.Env("JWT_ISSUER"))
	s.String(&c.Audience, "jwt_audience", "Audience that tokens must name; without one, any.", conf.Env("JWT_AUDIENCE"))
	s.Duration(&c.ClockSkew, "jwt_clock_skew", "Difference of clocks that is forgiven to exp, nbf and iat.", 0, bearer.MaxLeeway, seconds("JWT_CLOCK_SKEW", 0))
	s.Bool(&c.RequireExpiry, "jwt_require_expiry", "Refuse tokens without exp, which never end.")
	s.String(&c.RoleClaim, "jwt_roles_claim", "Claim with one role, a text.", conf.Env("JWT_ROLES_CLAIM"))
	s.String(&c.RolesClaim, "jwt_roles_array_claim", "Claim with a list of roles; a token has those of both claims.", conf.Env("JWT_ROLES_ARRAY_CLAIM"))
	s.String(&c.Admin, "jwt_role_admin", "Role that may do all.", conf.Env("JWT_ROLE_ADMIN"))
	s.String(&c.ReadWrite, "jwt_role_read_write", "Role that may push, pop, acknowledge, configure and read.", conf.Env("JWT_ROLE_READ_WRITE"))
	s.String(&c.ReadOnly, "jwt_role_read_only", "Role that may look, and take nothing.", conf.Env("JWT_ROLE_READ_ONLY"))
	s.String(&c.WriteOnly, "jwt_role_write_only", "Role that may push, and nothing else.", conf.Env("JWT_ROLE_WRITE_ONLY"))
	s.List(&c.SkipPaths, "jwt_skip_paths", "Paths served without a look at the credential; one that ends in a slash counts with all below it, but for the slash alone. An empty variable clears the list.",
		conf.Env("JWT_SKIP_PATHS"), conf.EmptyCounts())
	s.Check(func() error {
		_, err := c.build(nil)
		return err
	})
}

// build returns what a broker needs to judge tokens, nil when they are not taken, or everything that is unusable. A log
// of nil says nothing.
func (c *jwtConfig) build(log *slog.Logger) (*broker.JWT, error) {
	if !c.Enabled {
		return nil, nil
	}
	algs, err := bearer.Algorithms(c.Algorithm)
	if err != nil {
		return nil, fmt.Errorf("broker.jwt_algorithm: %w", err)
	}
	j := &broker.JWT{
		RoleClaim: c.RoleClaim, RolesClaim: c.RolesClaim, SkipPaths: c.SkipPaths,
		Roles: []broker.Role{
			{Word: c.Admin, Access: wire.AccessAdmin},
			{Word: c.ReadWrite, Access: wire.AccessReadWrite},
			{Word: c.ReadOnly, Access: wire.AccessReadOnly},
			{Word: c.WriteOnly, Access: wire.AccessWriteOnly},
		},
	}
	keys, accepted, err := c.keys(log, algs, j)
	if err != nil {
		return nil, err
	}
	j.Tokens, err = bearer.New(bearer.Config{
		Algorithms: accepted, Keys: keys, Issuer: c.Issuer, Audience: c.Audience, Leeway: c.ClockSkew, RequireExpiry: c.RequireExpiry,
	})
	return j, errors.Join(err, (&broker.Config{JWT: j}).Validate())
}

// keys gathers the material, and of the algorithms those that it serves: a token of another is refused as such.
func (c *jwtConfig) keys(log *slog.Logger, algs []string, j *broker.JWT) (keys bearer.Split, accepted []string, err error) {
	var errs []error
	if slices.ContainsFunc(algs, bearer.Shared) && c.Secret != "" {
		secret, err := bearer.Secret(c.Secret.Reveal())
		if err != nil {
			errs = append(errs, fmt.Errorf("broker.jwt_secret = redacted: %w", err))
		}
		keys.Secret = bearer.Fixed{Key: secret}
		for _, alg := range algs {
			if bearer.Shared(alg) {
				accepted = append(accepted, alg)
			}
		}
	}
	public := slices.DeleteFunc(slices.Clone(algs), bearer.Shared)
	switch {
	case len(public) == 0:
	case c.PublicKey != "":
		key, err := bearer.PublicKey(c.PublicKey)
		fits := slices.DeleteFunc(public, func(alg string) bool { return !key.Fits(alg) })
		if err == nil && len(fits) == 0 {
			err = fmt.Errorf("the key cannot be used with broker.jwt_algorithm = %s", c.Algorithm)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("broker.jwt_public_key: %w", err))
		}
		keys.Public = bearer.Fixed{Key: key}
		accepted = append(accepted, fits...)
		if c.JWKSURL != "" && log != nil {
			log.Warn("broker.jwt_jwks_url is not used: broker.jwt_public_key goes before it")
		}
	case c.JWKSURL != "":
		j.Keys, err = bearer.NewRemote(bearer.RemoteConfig{URL: c.JWKSURL, Algorithms: public, Refresh: c.JWKSRefresh, Timeout: c.JWKSTimeout, Log: log})
		if err != nil {
			errs = append(errs, fmt.Errorf("broker.jwt_jwks_url: %w", err))
		}
		keys.Public = j.Keys
		accepted = append(accepted, public...)
	}
	if len(errs) == 0 && len(accepted) == 0 {
		want := "broker.jwt_public_key or broker.jwt_jwks_url"
		switch {
		case len(public) == 0:
			want = "broker.jwt_secret"
		case len(public) < len(algs):
			want = strings.Join([]string{"broker.jwt_secret", "broker.jwt_public_key", "broker.jwt_jwks_url"}, ", ") + " or several of them"
		}
		errs = append(errs, fmt.Errorf("broker.jwt_enabled: tokens cannot be verified: want %s for broker.jwt_algorithm = %s", want, c.Algorithm))
	}
	return keys, accepted, errors.Join(errs...)
}
