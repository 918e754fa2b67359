package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"hash/crc32"
)

// An API key is
//
//	qk_<env>_<public id>_<secret>_<checksum>
//
// with an informational environment ([a-z0-9], 1 to 16), 8 characters of public id (base62, shown in lists and logs),
// 43 of secret (32 random bytes in base64url) and 6 of checksum (CRC-32 of all before its underscore, base62). The older
// form qk_<env>_<secret> is accepted too. The secret may contain underscores, so fields are found by position: what
// follows the environment is 59 or 43 characters long.
const (
	keyPrefix     = "qk_"
	maxEnvLen     = 16
	publicIDLen   = 8
	secretLen     = 43
	checksumLen   = 6
	longTailLen   = publicIDLen + 1 + secretLen + 1 + checksumLen
	shortTailLen  = secretLen
	base62        = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	secretRawSize = 32
)

// NewKey makes an API key for the environment ("live" or the like). The plaintext is shown to its owner once and stored
// nowhere; public id and hash go to the database. It panics unless ValidEnv(env).
func NewKey(env string) (plaintext, publicID string, hash [sha256.Size]byte) {
	if !ValidEnv(env) {
		panic("auth: invalid environment of a key: " + env)
	}
	var raw [secretRawSize]byte
	// crypto/rand.Read never fails: the runtime ends the process instead.
	_, _ = rand.Read(raw[:])
	publicID = randomBase62(publicIDLen)
	key := append([]byte(keyPrefix+env+"_"+publicID+"_"), base64.RawURLEncoding.EncodeToString(raw[:])...)
	sum := checksum(key)
	key = append(append(key, '_'), sum[:]...)
	return string(key), publicID, sha256.Sum256(key)
}

// ValidEnv reports whether env can stand in a key: 1 to 16 of [a-z0-9].
func ValidEnv(env string) bool {
	if len(env) == 0 || len(env) > maxEnvLen {
		return false
	}
	for i := range len(env) {
		if c := env[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// isKey reports whether a credential means to be an API key.
func isKey(credential []byte) bool { return bytes.HasPrefix(credential, []byte(keyPrefix)) }

// hashKey returns the hash to look a key up by; ok is false for what cannot be a key, which needs no look-up. It does
// not allocate.
func hashKey(key []byte) (hash [sha256.Size]byte, ok bool) {
	if len(key) > len(keyPrefix)+maxEnvLen+1+longTailLen || !isKey(key) {
		return hash, false
	}
	envLen := bytes.IndexByte(key[len(keyPrefix):], '_')
	if envLen < 0 || !ValidEnv(string(key[len(keyPrefix):len(keyPrefix)+envLen])) {
		return hash, false
	}
	tail := key[len(keyPrefix)+envLen+1:]
	switch len(tail) {
	case shortTailLen:
		ok = all(tail, isBase64URL)
	case longTailLen:
		id, secret := tail[:publicIDLen], tail[publicIDLen+1:publicIDLen+1+secretLen]
		signed := key[:len(key)-checksumLen-1]
		sum := checksum(signed)
		ok = all(id, isBase62) && tail[publicIDLen] == '_' && all(secret, isBase64URL) &&
			key[len(signed)] == '_' && string(sum[:]) == string(key[len(signed)+1:])
	}
	if !ok {
		return hash, false
	}
	return sha256.Sum256(key), true
}

// checksum returns the CRC-32 of the text as six base62 digits; 62^6 exceeds 2^32.
func checksum(text []byte) (sum [checksumLen]byte) {
	crc := crc32.ChecksumIEEE(text)
	for i := checksumLen - 1; i >= 0; i-- {
		sum[i] = base62[crc%62]
		crc /= 62
	}
	return sum
}

// randomBase62 returns n uniform characters: bytes of 248 and above would favour the first eight and are drawn again.
func randomBase62(n int) string {
	const unbiased = 256 - 256%62
	out := make([]byte, 0, n)
	var b [16]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		for _, c := range b {
			if c < unbiased {
				if out = append(out, base62[c%62]); len(out) == n {
					return string(out)
				}
			}
		}
	}
}

func all(text []byte, of func(byte) bool) bool {
	for _, c := range text {
		if !of(c) {
			return false
		}
	}
	return true
}

func isBase62(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isBase64URL(c byte) bool { return isBase62(c) || c == '-' || c == '_' }
