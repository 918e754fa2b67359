package bearer

import (
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// algorithms are all that the library can sign with and we know of.
var algorithms = slices.Concat(hsFamily, rsFamily, psFamily, esFamily, []string{edDSA})

// byAlgorithm has a key for each algorithm, whatever the token says of its key.
type byAlgorithm map[string]Key

func (b byAlgorithm) Find(_, alg string, _ time.Time) (Key, error) { return b[alg], nil }
func (byAlgorithm) Generation() uint64                             { return 0 }

func every(t testing.TB) Keys {
	keys := byAlgorithm{}
	for _, alg := range algorithms {
		keys[alg] = public(t, alg)
	}
	return keys
}

// TestEachSetAcceptsItsAlgorithmsAndNoOther holds every set against every algorithm, with good keys and signatures.
func TestEachSetAcceptsItsAlgorithmsAndNoOther(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"auto":  {"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "EdDSA"},
		"RS256": {"RS256", "RS384", "RS512"},
	}
	for _, set := range AlgorithmSets() {
		accepted, err := Algorithms(set)
		if err != nil {
			t.Fatal(err)
		}
		v := mustNew(t, Config{Algorithms: accepted, Keys: every(t)})
		if want[set] == nil {
			want[set] = []string{set}
		}
		for _, alg := range algorithms {
			_, err := v.Verify(sign(t, alg, signer(alg), goodClaims()), now)
			expect := UnsupportedAlgorithm
			if slices.Contains(want[set], alg) {
				expect = 0
			}
			if got := reasonOf(t, err); got != expect {
				t.Errorf("%s with the set %s: %v", alg, set, err)
			}
		}
	}
	for _, name := range []string{"", "none", "hs256", "RS", "ES256K"} {
		if _, err := Algorithms(name); err == nil {
			t.Errorf("%q is a set", name)
		}
	}
}

// TestAKeyServesItsKindAlone: every algorithm with every kind of key, though the set accepts it.
func TestAKeyServesItsKindAlone(t *testing.T) {
	t.Parallel()
	kind := func(alg string) string {
		switch {
		case alg[:2] == "PS":
			return "RS"
		case alg[:2] == "ES":
			return alg
		}
		return alg[:2]
	}
	for _, holder := range algorithms {
		v := mustNew(t, Config{Algorithms: algorithms, Keys: Fixed{public(t, holder)}})
		for _, alg := range algorithms {
			_, err := v.Verify(sign(t, alg, signer(alg), goodClaims()), now)
			expect := UnsupportedAlgorithm
			if kind(holder) == kind(alg) {
				expect = 0
			}
			if got := reasonOf(t, err); got != expect {
				t.Errorf("%s under the key of %s: %v", alg, holder, err)
			}
		}
	}
}

func TestAPublicKeyIsNoSecret(t *testing.T) {
	t.Parallel()
	rsPub := &pairs().rsa.PublicKey
	pkix, err := x509.MarshalPKIXPublicKey(rsPub)
	if err != nil {
		t.Fatal(err)
	}
	shapes := map[string][]byte{
		"PEM": []byte(publicPEM(rsPub)), "PKIX": pkix, "PKCS1": x509.MarshalPKCS1PublicKey(rsPub), "modulus": rsPub.N.Bytes(),
		"Ed25519": pairs().ed.Public().(ed25519.PublicKey), "nothing": {},
	}
	good, err := Secret(secret)
	if err != nil {
		t.Fatal(err)
	}
	for name, keys := range map[string]Keys{
		"an RSA key":              Fixed{public(t, "RS256")},
		"an Ed25519 key":          Fixed{public(t, "EdDSA")},
		"an RSA key, no secret":   Split{Public: Fixed{public(t, "RS256")}},
		"an RSA key and a secret": Split{Secret: Fixed{good}, Public: Fixed{public(t, "RS256")}},
		"the zero key":            Fixed{},
	} {
		v := mustNew(t, Config{Algorithms: algorithms, Keys: keys})
		for shape, bytes := range shapes {
			for _, alg := range hsFamily {
				if _, err := v.Verify(sign(t, alg, bytes, goodClaims(), "kid", "k"), now); err == nil {
					t.Errorf("%s: the %s of the public key passes as the secret of %s", name, shape, alg)
				}
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	hs := func(pairs ...any) string {
		c := goodClaims()
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] == nil {
				delete(c, pairs[i].(string))
			} else {
				c[pairs[i].(string)] = pairs[i+1]
			}
		}
		return sign(t, "HS256", []byte(secret), c)
	}
	header := func(pairs ...any) string { return sign(t, "HS256", []byte(secret), goodClaims(), pairs...) }
	good := hs()
	parts := strings.Split(good, ".")
	head := func(text string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(text)) + "." + parts[1] + "." + parts[2]
	}
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	none := sign(t, "none", jwt.UnsafeAllowNoneSignatureType, goodClaims())
	last := good[len(good)-1:]
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	padded := good[:len(good)-1] + digits[strings.Index(digits, last)^1:][:1]

	for rule, c := range map[string]struct {
		token string
		want  Reason
	}{
		"a good token":   {good, 0},
		"RS256":          {sign(t, "RS256", pairs().rsa, goodClaims()), 0},
		"EdDSA":          {sign(t, "EdDSA", pairs().ed, goodClaims()), 0},
		"any key id":     {header("kid", "../../etc/passwd"), 0}, // the keys here do not go by it
		"a type of data": {header("typ", "at+jwt", "cty", "x"), 0},

		"nothing":                     {"", BadHeader},
		"no token":                    {"garbage", BadHeader},
		"two parts":                   {parts[0] + "." + parts[1], BadHeader},
		"four parts":                  {good + ".x", BadHeader},
		"dots":                        {strings.Repeat(".", MaxTokenBytes), BadHeader},
		"too long":                    {good + strings.Repeat("A", MaxTokenBytes), BadHeader},
		"a header that is no base64":  {"!!." + parts[1] + "." + parts[2], BadHeader},
		"a header that is no JSON":    {head("{"), BadHeader},
		"a header that is null":       {head("null"), BadHeader},
		"a header that is a list":     {head("[]"), BadHeader},
		"a header without algorithm":  {head("{}"), BadHeader},
		"a critical extension":        {header("crit", []string{"exp"}), BadHeader},
		"a payload that is not coded": {header("crit", []string{"b64"}, "b64", false), BadHeader},
		"a key id that is a number":   {header("kid", 7), BadHeader},
		"an empty key id":             {header("kid", ""), BadHeader},

		"none":                       {none, UnsupportedAlgorithm},
		"none with our key id":       {sign(t, "none", jwt.UnsafeAllowNoneSignatureType, goodClaims(), "kid", "k"), UnsupportedAlgorithm},
		"None":                       {head(`{"alg":"None"}`), UnsupportedAlgorithm},
		"nOnE":                       {head(`{"alg":"nOnE"}`), UnsupportedAlgorithm},
		"hs256 in small letters":     {head(`{"alg":"hs256"}`), UnsupportedAlgorithm},
		"an algorithm that is null":  {head(`{"alg":null}`), BadHeader},
		"an algorithm that is a bit": {head(`{"alg":true}`), UnsupportedAlgorithm},
		"an algorithm nobody knows":  {head(`{"alg":"HS1024"}`), UnsupportedAlgorithm},
		"PS256 with our RSA key":     {sign(t, "PS256", pairs().rsa, goodClaims()), UnsupportedAlgorithm},
		"ES256":                      {sign(t, "ES256", pairs().ec["ES256"], goodClaims()), UnsupportedAlgorithm},

		"another secret":             {sign(t, "HS256", []byte(otherSecret), goodClaims()), BadSignature},
		"another RSA key":            {sign(t, "RS256", pairs().otherRSA, goodClaims()), BadSignature},
		"another Ed25519 key":        {sign(t, "EdDSA", pairs().otherEd, goodClaims()), BadSignature},
		"a key in the token itself":  {sign(t, "HS256", []byte(otherSecret), goodClaims(), "jwk", map[string]string{"kty": "oct", "k": base64.RawURLEncoding.EncodeToString([]byte(otherSecret))}), BadSignature},
		"an address of keys":         {sign(t, "HS256", []byte(otherSecret), goodClaims(), "jku", "https://evil.example", "x5u", "https://evil.example"), BadSignature},
		"no signature":               {parts[0] + "." + parts[1] + ".", BadSignature},
		"a signature cut short":      {good[:len(good)-4], BadSignature},
		"a signature of no base64":   {parts[0] + "." + parts[1] + ".!", BadSignature},
		"other padding bits":         {padded, BadSignature},
		"other claims":               {parts[0] + "." + strings.Split(hs("role", "god"), ".")[1] + "." + parts[2], BadSignature},
		"a header that was replaced": {head(`{"alg":"HS384"}`), BadSignature},

		"a payload of null":        {raw(t, "null"), BadClaims},
		"a payload that is a list": {raw(t, "[]"), BadClaims},
		"a payload of no JSON":     {raw(t, "{"), BadClaims},
		"a payload with a tail":    {raw(t, `{"sub":"x"} {}`), BadClaims},
		"no base64 as payload":     {parts[0] + ".!." + parts[2], BadClaims},
		"an exp that is a word":    {hs("exp", "soon"), BadClaims},
		"a sub that is a number":   {hs("sub", 7), BadClaims},
		"an aud that is an object": {hs("aud", map[string]int{}), BadClaims},

		"expired":                    {hs("exp", at(-30*time.Second)), Expired},
		"expired within the leeway":  {hs("exp", at(-29*time.Second)), 0},
		"expired at the epoch":       {hs("exp", 0), Expired},
		"no exp":                     {hs("exp", nil), 0},
		"an exp in another case":     {hs("exp", nil, "EXP", at(-time.Hour)), 0}, // another claim
		"not yet":                    {hs("nbf", at(31*time.Second)), NotYetValid},
		"not yet, within the leeway": {hs("nbf", at(30*time.Second)), 0},
		"from the future":            {hs("iat", at(31*time.Second)), IssuedInFuture},
		"from the future, barely":    {hs("iat", at(30*time.Second)), 0},
		"no iat":                     {hs("iat", nil), 0},
		"an iat after exp":           {hs("iat", at(20*time.Second), "exp", at(10*time.Second)), 0},

		"another issuer":               {hs("iss", "https://login.example/"), WrongIssuer},
		"no issuer":                    {hs("iss", nil), WrongIssuer},
		"another audience":             {hs("aud", "other"), WrongAudience},
		"no audience":                  {hs("aud", nil), WrongAudience},
		"an empty list of audiences":   {hs("aud", []string{}), WrongAudience},
		"ours among the audiences":     {hs("aud", []string{"other", "queues"}), 0},
		"expired, of a strange issuer": {hs("exp", at(-time.Hour), "iss", "x"), Expired},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			accepted, err := Algorithms("auto")
			if err != nil {
				t.Fatal(err)
			}
			v := mustNew(t, Config{Algorithms: accepted, Keys: every(t), Issuer: "https://login.example", Audience: "queues", Leeway: DefaultLeeway})
			claims, err := v.Verify(c.token, now)
			if got := reasonOf(t, err); got != c.want {
				t.Fatalf("got %v, want reason %d", err, c.want)
			}
			if (claims == nil) != (err != nil) {
				t.Errorf("claims %v beside the error %v", claims, err)
			}
			if err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "login.example")) {
				t.Errorf("the error tells too much: %v", err)
			}
		})
	}
}

func TestExpiryCanBeRequired(t *testing.T) {
	t.Parallel()
	v := mustNew(t, Config{Algorithms: hsFamily, Keys: every(t), RequireExpiry: true})
	if _, err := v.Verify(raw(t, `{"exp":null}`), now); reasonOf(t, err) != BadClaims {
		t.Errorf("no exp: %v", err)
	}
	if _, err := v.Verify(raw(t, fmt.Sprintf(`{"exp":%d}`, now.Unix()+1)), now); err != nil {
		t.Errorf("with exp: %v", err)
	}
}

func TestClaimsAreReadExactly(t *testing.T) {
	t.Parallel()
	v := mustNew(t, Config{Algorithms: hsFamily, Keys: every(t)})
	c, err := v.Verify(raw(t, `{"sub":"ann","Sub":"eve","jti":"7","nbf":1000.5,"aud":"a","role":"x","ROLE":"y","roles":["p","q"],"none":null,"n":1}`), now)
	if err != nil {
		t.Fatal(err)
	}
	if c.Subject != "ann" || c.ID != "7" || len(c.Audience) != 1 || !c.Expires.IsZero() || c.NotBefore.Unix() != 1000 {
		t.Errorf("%+v", c)
	}
	for name, want := range map[string]string{"role": "x", "ROLE": "y", "none": "", "absent": ""} {
		if got, err := c.Text(name); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if got, err := c.Texts("roles"); err != nil || !slices.Equal(got, []string{"p", "q"}) {
		t.Errorf("roles: %v, %v", got, err)
	}
	if got, err := c.Text("roles"); err == nil || got != "" {
		t.Errorf("a list as a text: %q", got)
	}
	if got, err := c.Text("n"); err == nil || got != "" {
		t.Errorf("a number as a text: %q", got)
	}
	if got, err := c.Texts("role"); err == nil || got != nil {
		t.Errorf("a text as a list: %v", got)
	}
}

func TestKeyMaterialIsHeldToBounds(t *testing.T) {
	t.Parallel()
	private, err := x509.MarshalPKCS8PrivateKey(pairs().ed)
	if err != nil {
		t.Fatal(err)
	}
	privatePEM := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	rsPEM := publicPEM(&pairs().rsa.PublicKey)
	even := &rsa.PublicKey{N: pairs().rsa.N, E: 4}
	for rule, c := range map[string]struct {
		make func() (Key, error)
		want string // part of the error, "" for none
	}{
		"a secret":                    {func() (Key, error) { return Secret(secret) }, ""},
		"a short secret":              {func() (Key, error) { return Secret(secret[1:]) }, "31 bytes: want at least 32"},
		"a PEM as secret":             {func() (Key, error) { return Secret(rsPEM) }, "cannot be a shared secret"},
		"half a PEM as secret":        {func() (Key, error) { return Secret(rsPEM[:60]) }, "cannot be a shared secret"},
		"an RSA key":                  {func() (Key, error) { return PublicKey(rsPEM) }, ""},
		"line ends of an environment": {func() (Key, error) { return PublicKey(strings.ReplaceAll(rsPEM, "\n", `\n`)) }, ""},
		"an RSA key in PKCS1": {func() (Key, error) {
			return PublicKey(string(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&pairs().rsa.PublicKey)})))
		}, ""},
		"an Ed25519 key":        {func() (Key, error) { return PublicKey(publicPEM(pairs().ed.Public())) }, ""},
		"an ECDSA key":          {func() (Key, error) { return PublicKey(publicPEM(pairs().ec["ES384"].Public())) }, ""},
		"a weak RSA key":        {func() (Key, error) { return PublicKey(publicPEM(&pairs().weakRSA.PublicKey)) }, "want at least 2048"},
		"an even exponent":      {func() (Key, error) { return newKey(even) }, "exponent 4"},
		"a private key":         {func() (Key, error) { return PublicKey(privatePEM) }, "not of a private key"},
		"nothing":               {func() (Key, error) { return PublicKey("") }, "want the PEM"},
		"rubbish":               {func() (Key, error) { return PublicKey("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n") }, "want the PEM"},
		"pinned to its kind":    {func() (Key, error) { k, _ := PublicKey(rsPEM); return k.Only("RS512") }, ""},
		"pinned to another":     {func() (Key, error) { k, _ := PublicKey(rsPEM); return k.Only("HS256") }, "cannot be used with an RSA public key"},
		"nothing pinned":        {func() (Key, error) { return Key{}.Only("HS256") }, "cannot be used with no key"},
		"pinned, then to other": {func() (Key, error) { k, _ := PublicKey(rsPEM); k, _ = k.Only("RS512"); return k.Only("RS256") }, "cannot be used"},
	} {
		k, err := c.make()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", rule, err, c.want)
		}
		if text := fmt.Sprintf("%v %+v %#v %s %q", k, k, k, k, k); strings.Contains(text, secret) || strings.Contains(text, "N:") {
			t.Errorf("%s: the key prints: %s", rule, text)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for rule, cfg := range map[string]Config{
		"no algorithm":     {Keys: Ring{}},
		"no keys":          {Algorithms: hsFamily},
		"none":             {Algorithms: []string{"none"}, Keys: Ring{}},
		"a set":            {Algorithms: []string{"auto"}, Keys: Ring{}},
		"a leeway below 0": {Algorithms: hsFamily, Keys: Ring{}, Leeway: -1},
		"an hour's leeway": {Algorithms: hsFamily, Keys: Ring{}, Leeway: time.Hour},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s is accepted", rule)
		}
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"a.b.c": "a.b.c", "Bearer a.b.c": "a.b.c", "bearer\ta.b.c": "a.b.c", "  BEARER   a.b.c  ": "a.b.c",
		"": "", "Bearer": "Bearer", "Bearer ": "Bearer", "Bearera.b.c": "Bearera.b.c", "Basic a": "Basic a", "Bearer a b": "a b",
	} {
		if got := string(Credential([]byte(header))); got != want {
			t.Errorf("%q: got %q, want %q", header, got, want)
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	c, err := NewCache[int](5)
	if err != nil || c.Len() != 8 {
		t.Fatalf("%d places for 5, want 8 (%v)", c.Len(), err)
	}
	name := func(i int) string { return fmt.Sprint("token ", i) }
	for i := range 1000 {
		c.Put(name(i), now.Add(time.Duration(i)*time.Second), i)
		if got := c.Get([]byte(name(i))); got == nil || *got != i {
			t.Fatalf("token %d, which ends last, is not remembered", i)
		}
	}
	held := 0
	for i := range 1000 {
		if got := c.Get([]byte(name(i))); got != nil {
			held++
			if *got != i {
				t.Fatalf("token %d found %d", i, *got)
			}
		}
	}
	if held == 0 || held > 8 {
		t.Errorf("%d tokens are held", held)
	}
	for _, size := range []int{-1, 1, maxCached + 1} {
		if _, err := NewCache[int](size); err == nil {
			t.Errorf("a cache of %d", size)
		}
	}
}

func TestCacheReplacesATokenInPlace(t *testing.T) {
	t.Parallel()
	c, err := NewCache[int](2)
	if err != nil {
		t.Fatal(err)
	}
	c.Put("a", time.Time{}, 1) // ends never
	c.Put("b", now, 1)
	c.Put("b", now, 2)
	if a, b := c.Get([]byte("a")), c.Get([]byte("b")); a == nil || b == nil || *b != 2 {
		t.Fatalf("a %v, b %v", a, b)
	}
	c.Put("c", now, 3)
	if c.Get([]byte("a")) == nil || c.Get([]byte("b")) != nil {
		t.Error("the token that ends first did not give way")
	}
}

func FuzzToken(f *testing.F) {
	v := mustNew(f, Config{Algorithms: sets["auto"], Keys: every(f), Leeway: DefaultLeeway})
	good := []string{sign(f, "HS256", []byte(secret), goodClaims()), sign(f, "EdDSA", pairs().ed, goodClaims())}
	for _, seed := range append(good, "eyJhbGciOiJub25lIn0.e30.", raw(f, "null"), raw(f, `{"exp":1e300}`), "..") {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		c, err := v.Verify(token, now)
		switch {
		case err != nil:
			reasonOf(t, err)
		case !slices.Contains(good, token):
			t.Fatalf("%q is believed: %+v", token, c)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	for _, alg := range []string{"HS256", "RS256", "ES256", "EdDSA"} {
		v := mustNew(b, Config{Algorithms: []string{alg}, Keys: Fixed{public(b, alg)}})
		token := sign(b, alg, signer(alg), goodClaims())
		b.Run(alg, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(token, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
