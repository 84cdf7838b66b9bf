package storetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/signature"
)

// Key makes a key, and gives the paths of its private and its public file.
func Key(t testing.TB) (private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, "private.pem"), filepath.Join(dir, "public.pem")
	for path, block := range map[string]*pem.Block{private: {Type: "PRIVATE KEY", Bytes: pkcs8}, public: {Type: "PUBLIC KEY", Bytes: spki}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return private, public
}

// SignFor returns a signature of what signed is by a private key's file, which hangs on what subject is.
func SignFor(t testing.TB, private string, signed, subject ocispec.Descriptor) signature.Attached {
	t.Helper()
	key, err := signature.ReadPrivateKey(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := signature.Sign(key, signed.Digest)
	if err != nil {
		t.Fatal(err)
	}
	a, err := signature.Attach(subject, bundle, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}
