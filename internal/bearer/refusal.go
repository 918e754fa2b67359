package bearer

import (
	"errors"

	"github.com/golang-jwt/jwt/v5"
)

// Reason says why a token is refused. Its text is fit for the caller: it holds nothing of the token or the keys.
type Reason uint8

// The reasons. KeysUnavailable is no fault of the token: nobody could tell whether it is good.
const (
	BadHeader Reason = iota + 1
	UnsupportedAlgorithm
	UnknownKey
	BadSignature
	BadClaims
	Expired
	NotYetValid
	IssuedInFuture
	WrongIssuer
	WrongAudience
	KeysUnavailable
)

// Reasons has all of them in order: for metrics that show zeros.
var Reasons = []Reason{
	BadHeader, UnsupportedAlgorithm, UnknownKey, BadSignature, BadClaims, Expired, NotYetValid, IssuedInFuture, WrongIssuer,
	WrongAudience, KeysUnavailable,
}

var reasonTexts = [...]string{
	BadHeader:            "Bad token header",
	UnsupportedAlgorithm: "Unsupported token algorithm",
	UnknownKey:           "Unknown key ID",
	BadSignature:         "Invalid token signature",
	BadClaims:            "Bad token claims",
	Expired:              "Token has expired",
	NotYetValid:          "Token not yet valid",
	IssuedInFuture:       "Token issued in the future",
	WrongIssuer:          "Invalid token issuer",
	WrongAudience:        "Invalid token audience",
	KeysUnavailable:      "The keys of tokens are not available",
}

// String is the text of the existing broker (spec/broker-http.md 1.4), which has none for BadClaims.
func (r Reason) String() string { return reasonTexts[r] }

// Refusal is the error of a token that is not believed.
type Refusal struct {
	Reason Reason
	cause  error // for the log
}

// Refuse returns a Refusal with a cause for the log, which may be nil.
func Refuse(r Reason, cause error) *Refusal { return &Refusal{r, cause} }

// Error implements error.
func (e *Refusal) Error() string {
	if e.cause == nil {
		return e.Reason.String()
	}
	return e.Reason.String() + ": " + e.cause.Error()
}

// Unwrap returns the cause.
func (e *Refusal) Unwrap() error { return e.cause }

// timeFaults are the faults of a token's times in the order in which they are told.
var timeFaults = []struct {
	err    error
	reason Reason
}{
	{jwt.ErrTokenExpired, Expired},
	{jwt.ErrTokenNotValidYet, NotYetValid},
	{jwt.ErrTokenUsedBeforeIssued, IssuedInFuture},
}

// refusalOf turns the library's error into a Refusal; t is the token as far as it was read.
func (v *Verifier) refusalOf(t *jwt.Token, err error) *Refusal {
	var own *Refusal
	if errors.As(err, &own) {
		return own
	}
	for _, f := range timeFaults {
		if errors.Is(err, f.err) {
			return Refuse(f.reason, err)
		}
	}
	switch {
	case t == nil || t.Header == nil: // not three parts, or no JSON in the first
		return Refuse(BadHeader, err)
	case t.Header["alg"] != nil && !v.accepts(t.Header["alg"]):
		return Refuse(UnsupportedAlgorithm, err)
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		return Refuse(BadHeader, err)
	case errors.Is(err, jwt.ErrTokenSignatureInvalid), t.Method != nil && errors.Is(err, jwt.ErrTokenMalformed):
		return Refuse(BadSignature, err)
	}
	return Refuse(BadClaims, err)
}
