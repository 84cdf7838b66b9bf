package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"
)

// PrivateKey makes signatures.
type PrivateKey struct {
	Public *PublicKey
	signer crypto.Signer
}

// ReadPrivateKey reads a file with a private key, PEM: one that "cosign generate-key-pair" made, for which it asks for the password,
// or PKCS #8 or EC that is not encrypted. Errors are of kind InvalidArgument, or what password returns.
func ReadPrivateKey(path string, password func() ([]byte, error)) (*PrivateKey, error) {
	wrong := func(err error) (*PrivateKey, error) {
		return nil, keyError(path, "a private key is one of cosign generate-key-pair, with its password in COSIGN_PASSWORD, or an ECDSA or ed25519 key of openssl genpkey", err)
	}
	block, _, err := readPEM(path)
	if err != nil {
		return wrong(err)
	}
	if block.Type == "ENCRYPTED SIGSTORE PRIVATE KEY" || block.Type == "ENCRYPTED COSIGN PRIVATE KEY" {
		pass, err := password()
		if err != nil {
			return nil, err
		}
		if block.Bytes, err = decrypt(block.Bytes, pass); err != nil {
			return wrong(err)
		}
		block.Type = "PRIVATE KEY"
	}
	k, err := parsePrivate(block)
	if err != nil {
		return wrong(err)
	}
	return k, nil
}

// Marshal returns the key as PKCS #8, which is not encrypted. [ParsePrivateKey] reads it.
func (k *PrivateKey) Marshal() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(k.signer) }

// ParsePrivateKey reads what [PrivateKey.Marshal] has written.
func ParsePrivateKey(data []byte) (*PrivateKey, error) {
	k, err := parsePrivate(&pem.Block{Type: "PRIVATE KEY", Bytes: data})
	if err != nil {
		return nil, fmt.Errorf("read the private key: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return k, nil
}

func parsePrivate(block *pem.Block) (*PrivateKey, error) {
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "PUBLIC KEY":
		err = errors.New("it is a public key, where the private one is needed")
	default:
		err = fmt.Errorf("it holds %q and no private key that is known here", block.Type)
	}
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("it is neither ECDSA nor ed25519")
	}
	public, err := newPublicKey(signer.Public())
	return &PrivateKey{Public: public, signer: signer}, err
}

// sign signs data. Of ed25519 it is the plain kind, see [PublicKey.verifies].
func (k *PrivateKey) sign(data []byte) ([]byte, error) {
	switch key := k.signer.(type) {
	case *ecdsa.PrivateKey:
		sum, err := hashed(key.Curve, data)
		if err != nil {
			return nil, err
		}
		return ecdsa.SignASN1(rand.Reader, key, sum)
	case ed25519.PrivateKey:
		return ed25519.Sign(key, data), nil
	}
	return nil, fmt.Errorf("a key of type %T does not sign", k.signer)
}

// sealed is a private key as cosign encrypts it. Source: github.com/secure-systems-lab/go-securesystemslib, package encrypted.
type sealed struct {
	KDF struct {
		Name   string `json:"name"`
		Params struct {
			N int `json:"N"`
			R int `json:"r"`
			P int `json:"p"`
		} `json:"params"`
		Salt []byte `json:"salt"`
	} `json:"kdf"`
	Cipher struct {
		Name  string `json:"name"`
		Nonce []byte `json:"nonce"`
	} `json:"cipher"`
	Ciphertext []byte `json:"ciphertext"`
}

func decrypt(data, password []byte) ([]byte, error) {
	var s sealed
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	var key [32]byte
	var nonce [24]byte
	p := s.KDF.Params
	switch {
	case s.KDF.Name != "scrypt" || s.Cipher.Name != "nacl/secretbox":
		return nil, fmt.Errorf("it is encrypted by %.40q and %.40q and not by scrypt and nacl/secretbox", s.KDF.Name, s.Cipher.Name)
	case p.N < 1<<15 || p.N > 1<<17 || p.R != 8 || p.P != 1:
		return nil, fmt.Errorf("scrypt with N %d, r %d, p %d, which cosign does not take either", p.N, p.R, p.P)
	case len(s.Cipher.Nonce) != len(nonce):
		return nil, fmt.Errorf("its nonce has %d bytes and not %d", len(s.Cipher.Nonce), len(nonce))
	}
	sum, err := scrypt.Key(password, s.KDF.Salt, p.N, p.R, p.P, len(key))
	if err != nil {
		return nil, err
	}
	copy(key[:], sum)
	copy(nonce[:], s.Cipher.Nonce)
	plain, ok := secretbox.Open(nil, s.Ciphertext, &nonce, &key)
	if !ok {
		return nil, errors.New("the password is wrong")
	}
	return plain, nil
}
