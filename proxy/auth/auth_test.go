package auth

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/queengate/queengate/plans"
	"github.com/queengate/queengate/wire"
)

var (
	now    = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	remote = netip.MustParseAddr("10.1.2.3")
)

// oldKey is a key of the older form, with underscores in its secret.
const oldKey = "qk_live_abc_def-ghijklmnopqrstuvwxyz0123456789ABCD_"

// world is a snapshot with one cluster, on which each test hangs its keys and users.
type world struct {
	cluster, other *plans.Cluster
	facts          plans.Facts
}

func setup() *world {
	w := &world{
		cluster: &plans.Cluster{ID: uuid.New(), Slug: "acme-main"},
		other:   &plans.Cluster{ID: uuid.New(), Slug: "acme-two"},
	}
	w.facts.Clusters = []*plans.Cluster{w.cluster, w.other}
	return w
}

func (w *world) addKey(plaintext string, change func(*plans.Key)) *plans.Key {
	k := &plans.Key{ID: uuid.New(), PublicID: "AAAAAAAA", Cluster: w.cluster, Hash: sha256.Sum256([]byte(plaintext)), Scopes: plans.ScopeProduce}
	if change != nil {
		change(k)
	}
	w.facts.Keys = append(w.facts.Keys, k)
	return k
}

func (w *world) snapshot() *plans.Snapshot { return plans.Compose(w.facts) }

func codeOf(err error) wire.Code {
	if err == nil {
		return ""
	}
	var e *wire.Error
	if !errors.As(err, &e) {
		return "not a wire.Error: " + wire.Code(err.Error())
	}
	return e.Code
}

func mustNew(t testing.TB, cfg Config) *Verifier {
	t.Helper()
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestKeysOfBothFormsAreFound(t *testing.T) {
	t.Parallel()
	w := setup()
	plaintext, publicID, hash := NewKey("test")
	if hash != sha256.Sum256([]byte(plaintext)) || len(publicID) != 8 || !strings.HasPrefix(plaintext, "qk_test_"+publicID+"_") {
		t.Fatalf("NewKey: %s, %s", plaintext, publicID)
	}
	long := w.addKey(plaintext, nil)
	short := w.addKey(oldKey, nil)
	v := mustNew(t, Config{})
	for text, want := range map[string]*plans.Key{
		plaintext:                  long,
		oldKey:                     short,
		"Bearer " + plaintext:      long,
		"bearer\t" + oldKey:        short,
		"BEARER   " + oldKey + " ": short,
	} {
		p, err := v.Verify(w.snapshot(), Request{Authorization: []byte(text), Remote: remote, Now: now})
		if err != nil || p.Key != want || p.User != uuid.Nil || p.Subject() != want.PublicID {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
}

func TestKeysAreRefused(t *testing.T) {
	t.Parallel()
	w := setup()
	v := mustNew(t, Config{})
	add := func(change func(*plans.Key)) string {
		plaintext, _, _ := NewKey("live")
		w.addKey(plaintext, change)
		return plaintext
	}
	good := add(nil)
	early := add(func(k *plans.Key) { k.NotBefore = now.Add(time.Nanosecond) })
	begun := add(func(k *plans.Key) { k.NotBefore = now })
	expired := add(func(k *plans.Key) { k.ExpiresAt = now })
	lasting := add(func(k *plans.Key) { k.ExpiresAt = now.Add(time.Nanosecond) })
	far := add(func(k *plans.Key) { k.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")} })
	near := add(func(k *plans.Key) {
		k.CIDRs = []netip.Prefix{netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("10.0.0.0/8")}
	})
	unknown, _, _ := NewKey("live")
	for rule, c := range map[string]struct {
		credential string
		remote     string
		want       wire.Code
	}{
		"a known key passes":                     {good, "10.1.2.3", ""},
		"an unknown key":                         {unknown, "10.1.2.3", wire.Unauthorized},
		"nothing":                                {"", "10.1.2.3", wire.Unauthorized},
		"only the scheme":                        {"Bearer ", "10.1.2.3", wire.Unauthorized},
		"the scheme glued to the key":            {"Bearer" + good, "10.1.2.3", wire.Unauthorized},
		"another scheme":                         {"Basic " + good, "10.1.2.3", wire.Unauthorized},
		"a key with something behind it":         {good + "x", "10.1.2.3", wire.Unauthorized},
		"a key with a list behind it":            {good + ", " + good, "10.1.2.3", wire.Unauthorized},
		"a key that has not begun":               {early, "10.1.2.3", wire.Unauthorized},
		"a key that begins now passes":           {begun, "10.1.2.3", ""},
		"a key that ends now":                    {expired, "10.1.2.3", wire.KeyExpired},
		"a key that ends next passes":            {lasting, "10.1.2.3", ""},
		"an address outside":                     {far, "10.1.2.3", wire.Forbidden},
		"an address inside one network passes":   {near, "10.1.2.3", ""},
		"an IPv6 address inside passes":          {near, "fd00::1", ""},
		"an IPv4 address mapped to IPv6 passes":  {near, "::ffff:10.1.2.3", ""},
		"a mapped address outside":               {far, "::ffff:10.1.2.3", wire.Forbidden},
		"a zone does not matter":                 {near, "fd00::1%eth0", ""},
		"expiry is told before the address is":   {expired, "203.0.113.1", wire.KeyExpired},
		"a key prefix in capitals is no key":     {strings.ToUpper(good[:3]) + good[3:], "10.1.2.3", wire.Unauthorized},
		"an old key cut short":                   {oldKey[:len(oldKey)-1], "10.1.2.3", wire.Unauthorized},
		"a key without its checksum":             {good[:len(good)-7], "10.1.2.3", wire.Unauthorized},
		"an environment with a capital":          {"qk_Live" + good[7:], "10.1.2.3", wire.Unauthorized},
		"an address that nobody knows and a key": {near, "", wire.Forbidden},
	} {
		var addr netip.Addr
		if c.remote != "" {
			addr = netip.MustParseAddr(c.remote)
		}
		_, err := v.Verify(w.snapshot(), Request{Authorization: []byte(c.credential), Remote: addr, Now: now})
		if got := codeOf(err); got != c.want {
			t.Errorf("%s: %q, want %q", rule, got, c.want)
		}
	}
}

// TestWrongChecksumNeedsNoLookup changes one character at a time of a valid key; none may reach the look-up.
func TestWrongChecksumNeedsNoLookup(t *testing.T) {
	t.Parallel()
	plaintext, _, hash := NewKey("live")
	if got, ok := hashKey([]byte(plaintext)); !ok || got != hash {
		t.Fatalf("%s is not looked up by its hash", plaintext)
	}
	for i := range len(plaintext) {
		for _, c := range []byte{'0', 'Z', 'a', '_', '-', '.', 0} {
			if c == plaintext[i] {
				continue
			}
			changed := []byte(plaintext)
			changed[i] = c
			if _, ok := hashKey(changed); ok {
				t.Errorf("%s would be looked up", changed)
			}
		}
	}
}

func TestKeysOfAnyEnvironment(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		env := rapid.StringMatching(`[a-z0-9]{1,16}`).Draw(t, "env")
		plaintext, publicID, hash := NewKey(env)
		got, ok := hashKey([]byte(plaintext))
		if !ok || got != hash || !all([]byte(publicID), isBase62) {
			t.Fatalf("%s is refused", plaintext)
		}
		secret := plaintext[len("qk_")+len(env)+1+publicIDLen+1:][:secretLen]
		if raw, err := base64.RawURLEncoding.Strict().DecodeString(secret); err != nil || len(raw) != 32 {
			t.Fatalf("secret %s: %v", secret, err)
		}
		if _, ok := hashKey([]byte("qk_" + env + "_" + secret)); !ok {
			t.Fatal("the older form is refused")
		}
	})
	for _, env := range []string{"", "a_b", "Live", strings.Repeat("a", 17), "lïve"} {
		if ValidEnv(env) {
			t.Errorf("%q can stand in a key", env)
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		plaintext, publicID, _ := NewKey("live")
		if seen[plaintext] || seen[publicID] {
			t.Fatal("a key or public id came twice")
		}
		seen[plaintext], seen[publicID] = true, true
	}
}

// TestAllowMatrix states spec/gateway.md 4.2 once more, as a table of who may use which class, and runs it over every
// route of the protocol.
func TestAllowMatrix(t *testing.T) {
	t.Parallel()
	allowed := map[wire.Class]string{
		wire.ClassBlocked:    "",
		wire.ClassProduce:    "produce | admin producer",
		wire.ClassConsume:    "consume | admin consumer",
		wire.ClassQueueAdmin: "admin | admin",
		wire.ClassRead:       "read read:payload admin | admin producer consumer viewer",
	}
	w := setup()
	user := uuid.New()
	for _, r := range wire.Routes {
		rule, known := allowed[r.Class]
		if !known {
			t.Errorf("%s %s: class %d is not in the matrix", r.Method, r.Pattern, r.Class)
			continue
		}
		scopes, roles, _ := strings.Cut(rule, " | ")
		for _, scope := range []string{"produce", "consume", "admin", "read", "read:payload"} {
			p := &Principal{Key: &plans.Key{Cluster: w.cluster, Scopes: plans.ParseScopes([]string{scope})}}
			err := Allow(w.snapshot(), p, w.cluster, r.Class)
			if got, want := err == nil, strings.Contains(" "+scopes+" ", " "+scope+" "); got != want {
				t.Errorf("%s %s with scope %s: %v", r.Method, r.Pattern, scope, err)
			}
			if err != nil && codeOf(err) != wire.Forbidden {
				t.Errorf("%s %s with scope %s: %v, want forbidden", r.Method, r.Pattern, scope, err)
			}
		}
		for _, role := range []string{"admin", "producer", "consumer", "viewer", "stranger"} {
			w.facts.Grants = []plans.Grant{{User: user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.ParseRole(role)}}}
			err := Allow(w.snapshot(), &Principal{User: user}, w.cluster, r.Class)
			if got, want := err == nil, strings.Contains(" "+roles+" ", " "+role+" "); got != want {
				t.Errorf("%s %s with role %s: %v", r.Method, r.Pattern, role, err)
			}
			if err != nil && codeOf(err) != wire.Forbidden {
				t.Errorf("%s %s with role %s: %v, want forbidden", r.Method, r.Pattern, role, err)
			}
		}
	}
}

// TestWhoSeesPayloads is who may see what is in messages that a route of reading lists.
func TestWhoSeesPayloads(t *testing.T) {
	t.Parallel()
	const scopes, roles = " consume read:payload ", " admin consumer "
	w := setup()
	for _, scope := range []string{"produce", "consume", "admin", "read", "read:payload"} {
		p := &Principal{Key: &plans.Key{Cluster: w.cluster, Scopes: plans.ParseScopes([]string{scope})}}
		if got, want := SeesPayloads(w.snapshot(), p, w.cluster), strings.Contains(scopes, " "+scope+" "); got != want {
			t.Errorf("a key with scope %s sees payloads: %v", scope, got)
		}
		if SeesPayloads(w.snapshot(), p, w.other) {
			t.Errorf("a key with scope %s sees payloads of another cluster", scope)
		}
		rule := &plans.ClaimRule{Scopes: plans.ParseScopes([]string{scope})}
		p = &Principal{Foreign: &Foreign{Issuer: &plans.Issuer{Tenant: w.cluster.TenantID}, Rules: []*plans.ClaimRule{rule}}}
		if got, want := SeesPayloads(w.snapshot(), p, w.cluster), strings.Contains(scopes, " "+scope+" "); got != want {
			t.Errorf("a token whose rule gives scope %s sees payloads: %v", scope, got)
		}
	}
	user := uuid.New()
	for _, role := range []string{"admin", "producer", "consumer", "viewer", "stranger"} {
		w.facts.Grants = []plans.Grant{{User: user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.ParseRole(role)}}}
		if got, want := SeesPayloads(w.snapshot(), &Principal{User: user}, w.cluster), strings.Contains(roles, " "+role+" "); got != want {
			t.Errorf("a user with role %s sees payloads: %v", role, got)
		}
	}
}

func TestAllow(t *testing.T) {
	t.Parallel()
	w := setup()
	user := uuid.New()
	w.facts.Grants = []plans.Grant{
		{User: user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.RoleViewer, plans.RoleConsumer}},
		{User: user, Cluster: w.other.ID, Roles: []plans.Role{plans.RoleAdmin}},
	}
	full := plans.ScopeProduce | plans.ScopeConsume | plans.ScopeAdmin | plans.ScopeRead
	for rule, c := range map[string]struct {
		p     Principal
		class wire.Class
		ok    bool
	}{
		"a key of another cluster":                       {Principal{Key: &plans.Key{Cluster: w.other, Scopes: full}}, wire.ClassRead, false},
		"a key of the cluster in an older snapshot":      {Principal{Key: &plans.Key{Cluster: &plans.Cluster{ID: w.cluster.ID}, Scopes: full}}, wire.ClassRead, true},
		"a key without scopes":                           {Principal{Key: &plans.Key{Cluster: w.cluster}}, wire.ClassRead, false},
		"any of several roles is enough":                 {Principal{User: user}, wire.ClassConsume, true},
		"roles on another cluster do not count":          {Principal{User: user}, wire.ClassProduce, false},
		"a stranger":                                     {Principal{User: uuid.New()}, wire.ClassRead, false},
		"nobody":                                         {Principal{}, wire.ClassRead, false},
		"a token for this cluster":                       {Principal{User: user, Cluster: w.cluster.ID}, wire.ClassConsume, true},
		"a token for another cluster":                    {Principal{User: user, Cluster: w.other.ID}, wire.ClassConsume, false},
		"roles in the token count":                       {Principal{User: user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.RoleProducer}}, wire.ClassProduce, true},
		"roles in the token replace the snapshot's":      {Principal{User: user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.RoleProducer}}, wire.ClassConsume, false},
		"no roles in the token are none":                 {Principal{User: user, Cluster: w.cluster.ID, Roles: []plans.Role{}}, wire.ClassRead, false},
		"roles in the token do not reach other clusters": {Principal{User: user, Cluster: w.other.ID, Roles: []plans.Role{plans.RoleAdmin}}, wire.ClassRead, false},
		"a class that does not exist":                    {Principal{Key: &plans.Key{Cluster: w.cluster, Scopes: full}}, wire.Class(200), false},
	} {
		err := Allow(w.snapshot(), &c.p, w.cluster, c.class)
		if (err == nil) != c.ok || err != nil && codeOf(err) != wire.Forbidden {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

func FuzzKey(f *testing.F) {
	for range 3 {
		plaintext, _, _ := NewKey("live")
		f.Add([]byte(plaintext))
	}
	f.Add([]byte(oldKey))
	f.Fuzz(func(t *testing.T, key []byte) {
		hash, ok := hashKey(key)
		if !ok {
			return
		}
		// What is looked up is one of the two forms, byte for byte.
		parts := strings.SplitN(string(key), "_", 3)
		if len(parts) != 3 || parts[0] != "qk" || !ValidEnv(parts[1]) || hash != sha256.Sum256(key) {
			t.Fatalf("%q is looked up", key)
		}
		switch tail := parts[2]; len(tail) {
		case 43:
		case 59:
			sum := checksum(key[:len(key)-7])
			if want := fmt.Sprintf("%s_%s_%s", tail[:8], tail[9:52], sum[:]); want != tail {
				t.Fatalf("%q is looked up, want a tail of %q", key, want)
			}
		default:
			t.Fatalf("%q is looked up", key)
		}
	})
}

func BenchmarkVerifyKey(b *testing.B) {
	w := setup()
	plaintext, _, _ := NewKey("live")
	w.addKey(plaintext, func(k *plans.Key) { k.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
	snap, v, header := w.snapshot(), mustNew(b, Config{}), []byte("Bearer "+plaintext)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(snap, Request{Authorization: header, Remote: remote, Now: now}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	w := setup()
	user := uuid.New()
	w.facts.Grants = []plans.Grant{{User: user, Cluster: w.cluster.ID, Roles: []plans.Role{plans.RoleProducer}}}
	snap, p := w.snapshot(), &Principal{User: user}
	b.ReportAllocs()
	for b.Loop() {
		if err := Allow(snap, p, w.cluster, wire.ClassProduce); err != nil {
			b.Fatal(err)
		}
	}
}
