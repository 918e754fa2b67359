package datadir

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// cellKeyFile holds the key with which the gateway of the folder states tenants to its broker.
const cellKeyFile = "keys/cell.key"

// EnsureCellKey returns the cell's signing key, making it at the first call. A file that holds no key is an error and
// is left alone.
func (d *Dir) EnsureCellKey() (ed25519.PrivateKey, error) {
	key, err := CellKey(d.path)
	if !errors.Is(err, os.ErrNotExist) {
		return key, err
	}
	if _, err := d.Sub("keys"); err != nil {
		return nil, err
	}
	_, key, err = ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := d.WriteFile(cellKeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		return nil, err
	}
	return key, nil
}

// CellKey reads the cell's signing key of a data folder that need not be held. os.ErrNotExist: the folder has none.
func CellKey(path string) (ed25519.PrivateKey, error) {
	name := filepath.Join(path, cellKeyFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	key, err := ParseCellKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return key, nil
}

// ParseCellKey reads an Ed25519 private key from PEM (PKCS #8), as `openssl genpkey -algorithm ed25519` writes it.
func ParseCellKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM block with a private key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("not a PKCS #8 private key") // the parser's error may quote the key
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a %T, want Ed25519", parsed)
	}
	return key, nil
}

// ParseCellPublicKey reads an Ed25519 public key from PEM (PKIX), as `openssl pkey -pubout` writes it.
func ParseCellPublicKey(text []byte) (ed25519.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM block with a public key")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("not a public key: %w", err)
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("a %T, want Ed25519", parsed)
	}
	return key, nil
}
