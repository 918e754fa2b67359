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
	want := CellClaims{Subject: "k1", Tenant: uuid.New(), Cluster: "demo", Access: AccessWriteOnly, MaxQueues: &queues, RequestsPerSecond: &rate, Expires: now.Add(time.Minute), RetentionCeiling: &queues, RefuseUnbounded: true, WithholdPayloads: true}
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
	claims := jwt.MapClaims{"iss": cellIssuer, "aud": "broker:c1", "exp": now.Add(time.Minute).Unix(), "tid": want.Tenant.String(), "lvl": "admin"}
	byHand := func() string {
		t.Helper()
		tok := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
		tok.Header["kid"] = KeyID(pub)
		s, err := tok.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if _, err := VerifyCell(keys, "c1", byHand(), now); err != nil {
		t.Fatal(err)
	}
	delete(claims, "exp")
	endless := byHand()

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
		"without an end":                   {endless, "c1", now},
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

// While keys are exchanged both are good, and a withdrawn one is not.
func TestKeysOfACellRotate(t *testing.T) {
	t.Parallel()
	keys := map[string]ed25519.PublicKey{}
	now := time.Unix(1_800_000_000, 0)
	var tokens [2]string
	var ids [2]string
	for i := range tokens {
		pub, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = KeyID(pub)
		keys[ids[i]] = pub
		if tokens[i], err = SignCell(key, "c1", CellClaims{Tenant: uuid.New(), Expires: now.Add(time.Minute)}, now); err != nil {
			t.Fatal(err)
		}
	}
	for _, token := range tokens {
		if _, err := VerifyCell(keys, "c1", token, now); err != nil {
			t.Errorf("of two keys one is refused: %v", err)
		}
	}
	delete(keys, ids[0])
	if _, err := VerifyCell(keys, "c1", tokens[0], now); err == nil {
		t.Error("a withdrawn key is good")
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
