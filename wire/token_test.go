package wire

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func TestCellToken(t *testing.T) {
	t.Parallel()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]ed25519.PublicKey{KeyID(pub): pub}
	now := time.Unix(1_800_000_000, 0)
	queues, rate := int64(5), 62.5
	want := CellClaims{Subject: "k1", Tenant: uuid.New(), Cluster: "demo", Access: AccessWriteOnly, MaxQueues: &queues, RequestsPerSecond: &rate, Expires: now.Add(time.Minute), RetentionCeiling: &queues, RefuseUnbounded: true}
	sign := func(k ed25519.PrivateKey, cell string, c CellClaims) string {
		s, err := SignCell(k, cell, c, now)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	good := sign(key, "c1", want)
	got, err := VerifyCell(keys, "c1", good, now)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	confused := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iss": cellIssuer, "aud": "broker:c1", "exp": now.Add(time.Minute).Unix(), "tid": want.Tenant.String(), "lvl": "admin"})
	confused.Header["kid"] = KeyID(pub)
	hs, err := confused.SignedString([]byte(pub))
	if err != nil {
		t.Fatal(err)
	}
	none := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{"iss": cellIssuer, "aud": "broker:c1", "exp": now.Add(time.Minute).Unix(), "tid": want.Tenant.String(), "lvl": "admin"})
	none.Header["kid"] = KeyID(pub)
	unsigned, err := none.SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		token, cell string
		now         time.Time
	}{
		"another key":                      {sign(other, "c1", want), "c1", now},
		"another cell":                     {good, "c2", now},
		"expired":                          {good, "c1", now.Add(2 * time.Minute)},
		"from the future":                  {good, "c1", now.Add(-time.Minute)},
		"the public key as an HMAC secret": {hs, "c1", now},
		"unsigned":                         {unsigned, "c1", now},
		"a changed byte":                   {flip(good, len(good)-40), "c1", now},
		"nothing":                          {"", "c1", now},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c, err := VerifyCell(keys, tt.cell, tt.token, tt.now); err == nil {
				t.Errorf("accepted as %+v", c)
			}
		})
	}
}

// flip changes one character of a token, inside its signature.
func flip(token string, at int) string {
	c := byte('A')
	if token[at] == c {
		c = 'B'
	}
	return token[:at] + string(c) + token[at+1:]
}
