package plans

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"time"
)

// The last-known-good file is
//
//	"queengate book 1\n" | 32 random bytes, the salt | AES-256-GCM of a document in gob, with its tag of 16 bytes
//
// The key is HKDF-SHA256 of the gateway's secret with the salt, so it is used once and the nonce is zero; beginning and
// salt are authenticated with the rest. Who has the file and not the secret learns how large the book is and nothing else,
// and cannot change one bit of it. Who can put files into the folder can put an older one there: it is good for as long
// as its age allows.
const (
	sealedMagic = "queengate book 1\n"
	saltSize    = 32
	sealedInfo  = "queengate last-known-good book"
)

// document is what the file holds.
type document struct {
	Origin string    // which control database it is of
	Synced time.Time // when it was last known to be that database's state
	Seq    int64     // of the last change in it
	Rows   rawRows
}

// Why a file is not used.
var (
	errNotSealed    = errors.New("it is truncated, or no file of a book")
	errForeignSeal  = errors.New("it was not sealed with this gateway's secret, or something changed it since")
	errOtherOrigin  = errors.New("it is of another control database")
	errOtherVersion = errors.New("it is of another version of this program")
	errFuture       = errors.New("it is from the future: the clock is wrong")
)

// seal returns the file with the document.
func (d *document) seal(secret []byte) ([]byte, error) {
	var plain bytes.Buffer
	if err := gob.NewEncoder(&plain).Encode(d); err != nil {
		return nil, fmt.Errorf("encode the book: %w", err)
	}
	head := make([]byte, len(sealedMagic)+saltSize, len(sealedMagic)+saltSize+plain.Len()+sha256.Size)
	copy(head, sealedMagic)
	rand.Read(head[len(sealedMagic):]) // it never fails
	aead, err := sealer(secret, head[len(sealedMagic):])
	if err != nil {
		return nil, err
	}
	return aead.Seal(head, make([]byte, aead.NonceSize()), plain.Bytes(), bytes.Clone(head)), nil
}

// unseal returns the document of a file. The errors say why there is none.
func unseal(file, secret []byte) (*document, error) {
	if len(file) < len(sealedMagic)+saltSize || !bytes.HasPrefix(file, []byte(sealedMagic)) {
		return nil, errNotSealed
	}
	head, sealed := file[:len(sealedMagic)+saltSize], file[len(sealedMagic)+saltSize:]
	aead, err := sealer(secret, head[len(sealedMagic):])
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, make([]byte, aead.NonceSize()), sealed, head)
	if err != nil {
		return nil, errForeignSeal
	}
	d := &document{}
	if err := gob.NewDecoder(bytes.NewReader(plain)).Decode(d); err != nil {
		return nil, errOtherVersion // it is as somebody with the secret wrote it
	}
	return d, nil
}

func sealer(secret, salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, secret, salt, sealedInfo, 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key of the book: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// check reports why the document may not be used now by a gateway of that control database.
func (d *document) check(origin string, maxAge time.Duration, now time.Time) error {
	switch age := now.Sub(d.Synced); {
	case d.Origin != origin:
		return errOtherOrigin
	case age < -clockSlack:
		return errFuture
	case age >= maxAge:
		return fmt.Errorf("it is %v old: want at most %v", age.Round(time.Second), maxAge)
	}
	return nil
}

// clockSlack is by how much a clock may have been set back since the file was written.
const clockSlack = time.Minute
