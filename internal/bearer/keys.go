package bearer

import "time"

// Keys finds the key of a token. Find gets the key id of the token's header, "" when it has none, and an algorithm that is
// accepted; it may block while keys are fetched. Its errors are *Refusal: UnknownKey, or KeysUnavailable.
//
// Generation changes with the set of keys: what was verified under another one must be verified again.
type Keys interface {
	Find(kid, alg string, now time.Time) (Key, error)
	Generation() uint64
}

// Ring holds keys by key id, exactly; "" is the key of tokens without one. It must not change once it is used.
type Ring map[string]Key

// Find implements Keys.
func (r Ring) Find(kid, _ string, _ time.Time) (Key, error) {
	if k, ok := r[kid]; ok {
		return k, nil
	}
	return Key{}, Refuse(UnknownKey, nil)
}

// Generation implements Keys: a ring does not change.
func (Ring) Generation() uint64 { return 0 }

// Fixed is one key for all tokens, whatever key id they name.
type Fixed struct{ Key }

// Find implements Keys.
func (f Fixed) Find(string, string, time.Time) (Key, error) { return f.Key, nil }

// Generation implements Keys.
func (Fixed) Generation() uint64 { return 0 }

// Split asks Secret for the key of algorithms with a shared secret and Public for all others; either may be nil when
// none of its algorithms is accepted.
type Split struct{ Secret, Public Keys }

// Find implements Keys.
func (s Split) Find(kid, alg string, now time.Time) (Key, error) {
	from := s.Public
	if Shared(alg) {
		from = s.Secret
	}
	if from == nil {
		return Key{}, Refuse(UnknownKey, nil)
	}
	return from.Find(kid, alg, now)
}

// Generation implements Keys: a secret does not change.
func (s Split) Generation() uint64 {
	if s.Public == nil {
		return 0
	}
	return s.Public.Generation()
}
