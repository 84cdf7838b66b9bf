package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"
)

// maxKeyFile bounds the bytes of a file with a key.
const maxKeyFile = 64 << 10

// PublicKey checks signatures.
type PublicKey struct {
	Path string // of its file; empty: it came with its private key
	key  crypto.PublicKey
	sum  [sha256.Size]byte
}

// ReadPublicKey reads a file with one public key, PEM, as "cosign generate-key-pair" and "openssl pkey -pubout" write it. Errors are of kind InvalidArgument.
func ReadPublicKey(path string) (*PublicKey, error) {
	k, err := readPublicKey(path)
	if err != nil {
		return nil, keyError(path, "a public key is an ECDSA or ed25519 key in PEM form, such as cosign.pub", err)
	}
	return k, nil
}

func readPublicKey(path string) (*PublicKey, error) {
	block, rest, err := readPEM(path)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.HasSuffix(block.Type, "PRIVATE KEY"):
		return nil, errors.New("it is a private key, where the public one is needed")
	case block.Type != "PUBLIC KEY":
		return nil, fmt.Errorf("it holds %q and not PUBLIC KEY", block.Type)
	}
	if again, _ := pem.Decode(rest); again != nil {
		return nil, errors.New("it holds more than one key: a file is for one")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	k, err := newPublicKey(key)
	if err == nil {
		k.Path = path
	}
	return k, err
}

// readPEM returns the first block of a file, parameters of curves left out, and what comes after.
func readPEM(path string) (*pem.Block, []byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if cause := (*os.PathError)(nil); errors.As(err, &cause) {
			err = cause.Err // the path is said already
		}
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, nil, err
	}
	block, rest := pem.Decode(data)
	if block != nil && block.Type == "EC PARAMETERS" {
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil, nil, errors.New("it is not in PEM form")
	}
	return block, rest, nil
}

func newPublicKey(key crypto.PublicKey) (*PublicKey, error) {
	switch k := key.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if _, err := hashed(k.Curve, nil); err != nil {
			return nil, err
		}
	default:
		return nil, errors.New("it is neither ECDSA nor ed25519")
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	return &PublicKey{key: key, sum: sha256.Sum256(der)}, nil
}

// Fingerprint is the SHA-256 of the key in DER form, as "openssl pkey -pubin -outform DER | sha256sum" gives it.
func (k *PublicKey) Fingerprint() string { return fingerprint(k.sum[:]) }

func fingerprint(sum []byte) string { return digest.SHA256.String() + ":" + hex.EncodeToString(sum) }

// hint is what cosign calls a key in a bundle: its fingerprint, written in another way.
func (k *PublicKey) hint() string { return base64.StdEncoding.EncodeToString(k.sum[:]) }

// claimed is the fingerprint that a hint is; empty if it is none.
func claimed(hint string) string {
	sum, err := base64.StdEncoding.DecodeString(hint)
	if err != nil || len(sum) != sha256.Size {
		return ""
	}
	return fingerprint(sum)
}

// verifies reports whether sig is the key's signature of data. Of ed25519 there are two kinds: cosign makes the one with SHA-512 before it
// (ed25519ph) and checks the plain one (cosign 3.1), so that both are taken. Source: RFC 8032, 5.1.
func (k *PublicKey) verifies(data, sig []byte) bool {
	switch key := k.key.(type) {
	case ed25519.PublicKey:
		sum := sha512.Sum512(data)
		return ed25519.Verify(key, data, sig) || ed25519.VerifyWithOptions(key, sum[:], sig, &ed25519.Options{Hash: crypto.SHA512}) == nil
	case *ecdsa.PublicKey:
		sum, err := hashed(key.Curve, data)
		return err == nil && ecdsa.VerifyASN1(key, sum, sig)
	}
	return false
}

// hashed is data as keys of the curve sign it.
func hashed(curve elliptic.Curve, data []byte) ([]byte, error) {
	switch curve {
	case elliptic.P256():
		sum := sha256.Sum256(data)
		return sum[:], nil
	case elliptic.P384():
		sum := sha512.Sum384(data)
		return sum[:], nil
	case elliptic.P521():
		sum := sha512.Sum512(data)
		return sum[:], nil
	}
	return nil, fmt.Errorf("its curve is %s and not P-256, P-384 or P-521", curve.Params().Name)
}
