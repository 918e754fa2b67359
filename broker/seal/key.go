package seal

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

const (
	keyLen   = 32
	keyIDLen = 8
)

// KeyID names a key in envelopes. It is derived from the key and tells nothing about it.
type KeyID [keyIDLen]byte

// String returns the id as 16 hexadecimal digits: what logs and metrics show.
func (id KeyID) String() string { return hex.EncodeToString(id[:]) }

// Key is a key ready for use. Printing it shows its id and never its bytes. Safe for concurrent use.
type Key struct {
	id   KeyID
	aead cipher.AEAD
}

// ID returns the key's id.
func (k *Key) ID() KeyID { return k.id }

// String returns the key's id.
func (k *Key) String() string { return k.id.String() }

// ParseKey reads a key written as 64 hexadecimal digits. It refuses anything else, and a key whose bytes are all the
// same: that is a placeholder somebody forgot. Errors never quote the text.
func ParseKey(text string) (*Key, error) {
	if len(text) != hex.EncodedLen(keyLen) {
		return nil, fmt.Errorf("%d characters, want %d hexadecimal digits (openssl rand -hex %d)", len(text), hex.EncodedLen(keyLen), keyLen)
	}
	secret := make([]byte, keyLen)
	if _, err := hex.Decode(secret, []byte(text)); err != nil {
		return nil, fmt.Errorf("not hexadecimal, want %d digits 0-9 and a-f", hex.EncodedLen(keyLen))
	}
	same := true
	for _, b := range secret {
		same = same && b == secret[0]
	}
	if same {
		return nil, errors.New("all bytes are the same: want a random key")
	}
	return newKey(secret)
}

func newKey(secret []byte) (*Key, error) {
	id, err := hkdf.Key(sha256.New, secret, nil, "queengate payload key id", keyIDLen)
	if err != nil {
		return nil, err
	}
	derived, err := hkdf.Key(sha256.New, secret, nil, "queengate payload key", chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	aead, err := chacha20poly1305.NewX(derived)
	if err != nil {
		return nil, err
	}
	return &Key{id: KeyID(id), aead: aead}, nil
}

// Ring is the keys of a broker: at most one that seals, and any number that open. It is immutable, and safe for
// concurrent use. A nil Ring has no key.
type Ring struct {
	active *Key
	keys   map[KeyID]*Key
}

// NewRing returns a ring that seals with active, nil for none, and opens with all. A key may be given twice.
func NewRing(active *Key, more ...*Key) *Ring {
	r := &Ring{active: active, keys: make(map[KeyID]*Key, 1+len(more))}
	if active != nil {
		r.keys[active.id] = active
	}
	for _, k := range more {
		r.keys[k.id] = k
	}
	return r
}

// Seals reports whether the ring has a key to seal with.
func (r *Ring) Seals() bool { return r != nil && r.active != nil }

// Active returns the id of the key that seals; ok is false when there is none.
func (r *Ring) Active() (id KeyID, ok bool) {
	if !r.Seals() {
		return KeyID{}, false
	}
	return r.active.id, true
}

// IDs returns the ids of all keys, in no order.
func (r *Ring) IDs() []KeyID {
	if r == nil {
		return nil
	}
	ids := make([]KeyID, 0, len(r.keys))
	for id := range r.keys {
		ids = append(ids, id)
	}
	return ids
}
