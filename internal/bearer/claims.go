package bearer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Claims is what a token states. Names are exact, and a claim of null is one that is absent.
type Claims struct {
	Issuer, Subject, ID string // "" when absent
	Audience            []string
	Expires             time.Time // zero when absent, like the two below
	NotBefore           time.Time
	IssuedAt            time.Time

	raw map[string]json.RawMessage
}

// UnmarshalJSON reads a payload; a registered claim of another type than RFC 7519 gives it is an error.
func (c *Claims) UnmarshalJSON(payload []byte) error {
	*c = Claims{}
	if err := json.Unmarshal(payload, &c.raw); err != nil {
		return errors.New("the payload is no JSON object")
	}
	var audience jwt.ClaimStrings
	var expires, notBefore, issuedAt *jwt.NumericDate
	for name, into := range map[string]any{
		"iss": &c.Issuer, "sub": &c.Subject, "jti": &c.ID, "aud": &audience, "exp": &expires, "nbf": &notBefore, "iat": &issuedAt,
	} {
		raw, stated := c.raw[name]
		if !stated {
			continue
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return fmt.Errorf("the claim %s is malformed", name)
		}
	}
	c.Audience = audience
	c.Expires, c.NotBefore, c.IssuedAt = timeOf(expires), timeOf(notBefore), timeOf(issuedAt)
	return nil
}

func timeOf(d *jwt.NumericDate) time.Time {
	if d == nil {
		return time.Time{}
	}
	return d.Time
}

func dateOf(t time.Time) *jwt.NumericDate {
	if t.IsZero() {
		return nil
	}
	return &jwt.NumericDate{Time: t}
}

// Text returns the claim of that name, "" when it is absent; one that is no text is an error.
func (c *Claims) Text(name string) (text string, err error) {
	return text, c.decode(name, &text)
}

// Texts returns the claim of that name, nil when it is absent; one that is no list of texts is an error.
func (c *Claims) Texts(name string) (texts []string, err error) {
	return texts, c.decode(name, &texts)
}

// Values returns the texts of a claim: itself if it is a text, its texts if it is a list; a path of several names leads into
// objects. Whatever else stands there, or nothing, is none.
func (c *Claims) Values(path []string) []string {
	if len(path) == 0 {
		return nil
	}
	raw := c.raw[path[0]]
	for _, name := range path[1:] {
		var inside map[string]json.RawMessage
		if json.Unmarshal(raw, &inside) != nil {
			return nil
		}
		raw = inside[name]
	}
	var text string
	if len(raw) == 0 || raw[0] == 'n' { // null would decode into anything
		return nil
	}
	if json.Unmarshal(raw, &text) == nil {
		return []string{text}
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	var texts []string
	for _, member := range list {
		if member[0] == '"' && json.Unmarshal(member, &text) == nil {
			texts = append(texts, text)
		}
	}
	return texts
}

// StatedIssuer returns what a token says its issuer is, "" when it says nothing one can read. Nothing of it is verified: it
// tells which keys to ask, and Config.Issuer must say the same.
func StatedIssuer(token string) string {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	if payload == "" || len(token) > MaxTokenBytes {
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return ""
	}
	var claims map[string]json.RawMessage // names are exact in a map
	var issuer string
	if json.Unmarshal(text, &claims) != nil || json.Unmarshal(claims["iss"], &issuer) != nil {
		return ""
	}
	return issuer
}

func (c *Claims) decode(name string, into any) error {
	raw, stated := c.raw[name]
	if !stated {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("the claim %s is of another type", name)
	}
	return nil
}

// dated shows the library the times of claims; issuer and audience are judged by Verifier itself.
type dated struct{ Claims }

func (c *dated) GetExpirationTime() (*jwt.NumericDate, error) { return dateOf(c.Expires), nil }
func (c *dated) GetNotBefore() (*jwt.NumericDate, error)      { return dateOf(c.NotBefore), nil }
func (c *dated) GetIssuedAt() (*jwt.NumericDate, error)       { return dateOf(c.IssuedAt), nil }
func (c *dated) GetAudience() (jwt.ClaimStrings, error)       { return c.Audience, nil }
func (c *dated) GetIssuer() (string, error)                   { return c.Issuer, nil }
func (c *dated) GetSubject() (string, error)                  { return c.Subject, nil }
