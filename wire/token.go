package wire

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

// CellClaims is what a gateway states to a broker in a short-lived Ed25519 token (design.md 4.9). Brokers in tenancy
// mode believe the tenant only from here. Caps of nil mean unlimited.
//
// RetentionCeiling and RefuseUnbounded are the plan's word on queues without retention: with a ceiling such a queue is
// given it when it is made or configured, or with RefuseUnbounded is refused. nil: it keeps its messages.
type CellClaims struct {
	Subject       string    // public id of the key, or the user: becomes the message's producer
	Tenant        uuid.UUID // the cluster's broker tenant
	Cluster       string    // for logs
	Access        Access    // the least level the route needs
	MaxQueues     *int64    // the plan's cap, enforced by the statement that provisions
	MaxPartitions *int64    // per queue, Default not counted
	// RequestsPerSecond is what the plan allows: the weight of the tenant where it waits beside others. nil: not stated,
	// or no limit.
	RequestsPerSecond *float64
	Expires           time.Time

	RetentionCeiling *int64 // seconds, above 0
	RefuseUnbounded  bool

	// WithholdPayloads says that the bearer may read about messages and not what is in them. That it is not stated means
	// that it may, so that a gateway of before, which does not know it, is served as it was.
	WithholdPayloads bool
}

type cellJWT struct {
	jwt.RegisteredClaims
	Tenant        string   `json:"tid"`
	Cluster       string   `json:"cid"`
	Access        string   `json:"lvl"`
	MaxQueues     *int64   `json:"mxq,omitempty"`
	MaxPartitions *int64   `json:"mxp,omitempty"`
	Rate          *float64 `json:"rps,omitempty"`

	RetentionCeiling *int64 `json:"rtc,omitempty"`
	RefuseUnbounded  bool   `json:"rtr,omitempty"`
	WithholdPayloads bool   `json:"npl,omitempty"`
}

// cellIssuer and the audience prefix pin a token to its use: a token of one cell is worth nothing in another.
const cellIssuer = "queengate"

func cellAudience(cell string) string { return "broker:" + cell }

// KeyID returns the kid of an Ed25519 public key: the first 16 bytes of its SHA-256, in hex.
func KeyID(pub ed25519.PublicKey) string {
	sum := sha256.Sum256(pub)
	return hex.EncodeToString(sum[:16])
}

// SignCell signs c for the cell, valid from now until c.Expires.
func SignCell(key ed25519.PrivateKey, cell string, c CellClaims, now time.Time) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, cellJWT{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: cellIssuer, Audience: jwt.ClaimStrings{cellAudience(cell)}, Subject: c.Subject,
			IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(c.Expires),
		},
		Tenant: c.Tenant.String(), Cluster: c.Cluster, Access: c.Access.String(),
		MaxQueues: c.MaxQueues, MaxPartitions: c.MaxPartitions, Rate: c.RequestsPerSecond,
		RetentionCeiling: c.RetentionCeiling, RefuseUnbounded: c.RefuseUnbounded, WithholdPayloads: c.WithholdPayloads,
	})
	t.Header["kid"] = KeyID(key.Public().(ed25519.PublicKey))
	return t.SignedString(key)
}

// cellLeeway covers the clock difference between a gateway and a broker.
const cellLeeway = 5 * time.Second

// VerifyCell checks a token against the public keys (by key id; two are valid during a rotation) and returns what it
// states. Every failure is one error without detail for the caller; the cause is for the log.
func VerifyCell(keys map[string]ed25519.PublicKey, cell, token string, now time.Time) (CellClaims, error) {
	var c cellJWT
	p := jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithIssuer(cellIssuer),
		jwt.WithAudience(cellAudience(cell)), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
		jwt.WithLeeway(cellLeeway), jwt.WithTimeFunc(func() time.Time { return now }))
	_, err := p.ParseWithClaims(token, &c, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		pub, ok := keys[kid]
		if !ok {
			return nil, errors.New("unknown key id")
		}
		return pub, nil
	})
	if err != nil {
		return CellClaims{}, fmt.Errorf("verify cell token: %w", err)
	}
	tenant, err := uuid.Parse(c.Tenant)
	if err != nil {
		return CellClaims{}, fmt.Errorf("verify cell token: tenant: %w", err)
	}
	access, err := ParseAccess(c.Access)
	if err != nil {
		return CellClaims{}, fmt.Errorf("verify cell token: %w", err)
	}
	return CellClaims{
		Subject: c.Subject, Tenant: tenant, Cluster: c.Cluster, Access: access,
		MaxQueues: c.MaxQueues, MaxPartitions: c.MaxPartitions, RequestsPerSecond: c.Rate, Expires: c.ExpiresAt.Time,
		RetentionCeiling: c.RetentionCeiling, RefuseUnbounded: c.RefuseUnbounded, WithholdPayloads: c.WithholdPayloads,
	}, nil
}
