package signature

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
)

// signed is what cosign 3.1.3 has signed in testdata, by
//
//	cosign sign --key cosign.key --tlog-upload=false --use-signing-config=false 127.0.0.1:5555/a/b@sha256:...
const signed = digest.Digest("sha256:fa2fda9826cdc24dfbe653a954971ef5967e386c8e3a319dbe0a3bb4006e2865")

func secret() ([]byte, error) { return []byte("secret"), nil }

// newKey makes a key and gives the paths of its private and public file.
func newKey(t testing.TB, kind string) (private, public string) {
	t.Helper()
	var key any
	var pub any
	var err error
	switch kind {
	case "ed25519":
		pub, key, err = ed25519.GenerateKey(rand.Reader)
	case "rsa":
		var k *rsa.PrivateKey
		k, err = rsa.GenerateKey(rand.Reader, 2048)
		key, pub = k, &k.PublicKey
	default:
		curve := map[string]elliptic.Curve{"P-224": elliptic.P224(), "P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[kind]
		var k *ecdsa.PrivateKey
		k, err = ecdsa.GenerateKey(curve, rand.Reader)
		key, pub = k, &k.PublicKey
	}
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, kind+".key"), filepath.Join(dir, kind+".pub")
	write(t, private, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	write(t, public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki}))
	return private, public
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sign gives a signature of d by the key at path.
func sign(t testing.TB, path string, d digest.Digest) Attached {
	t.Helper()
	key, err := ReadPrivateKey(path, secret)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := Sign(key, d)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Attach(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: 7}, bundle, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// holds gives what reads blobs.
func holds(blobs ...record.Blob) Fetch {
	return func(_ context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
		for _, b := range blobs {
			if b.Descriptor.Digest == d.Digest && d.Size <= limit {
				return b.Data, nil
			}
		}
		return nil, errdefs.ErrNotFound
	}
}

// TestCosign reads what cosign has made, manifest, bundle and key.
func TestCosign(t *testing.T) {
	manifest := record.BlobOf(ocispec.MediaTypeImageManifest, read(t, "testdata/cosign.manifest.json"))
	manifest.Descriptor.ArtifactType = MediaType
	if !Candidate(manifest.Descriptor) {
		t.Error("it is not taken for a signature")
	}
	a, err := Read(t.Context(), holds(manifest, record.BlobOf(MediaType, read(t, "testdata/cosign.bundle.json"))), manifest.Descriptor, signed)
	if err != nil || a.Err != nil {
		t.Fatal(err, a.Err)
	}
	edwards := Attached{Bundle: record.BlobOf(MediaType, read(t, "testdata/cosign-ed25519.bundle.json"))}
	for file, a := range map[string]Attached{"testdata/cosign.pub": a, "testdata/cosign-ed25519.pub": edwards} {
		p, err := NewPolicy(true, []string{file}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if doubt, err := p.Judge([]string{"docker.io/library/a:1"}, signed, []Attached{a}, nil); doubt != nil || err != nil {
			t.Errorf("%s: %v, %v", file, doubt, err)
		}
	}
	key, err := ReadPrivateKey("testdata/cosign.key", secret)
	if err != nil {
		t.Fatal(err)
	}
	public, err := ReadPublicKey("testdata/cosign.pub")
	if err != nil || public.Fingerprint() != key.Public.Fingerprint() {
		t.Errorf("%v, %s is not %s", err, public.Fingerprint(), key.Public.Fingerprint())
	}
	if !public.SignedBy(signed, []Attached{a, sign(t, "testdata/cosign.key", signed)}) || public.SignedBy(signed, []Attached{edwards}) {
		t.Error("who has signed is another")
	}
	if _, err := ReadPrivateKey("testdata/cosign.key", func() ([]byte, error) { return []byte("guess"), nil }); err == nil || !strings.Contains(err.Error(), "password is wrong") {
		t.Errorf("a wrong password: %v", err)
	}
}

// TestSameShape compares what we make with what cosign makes: the same keys, and the same values where they do not depend on the key or the time.
func TestSameShape(t *testing.T) {
	ours := sign(t, "testdata/cosign.key", signed)
	theirs, mine := shape(t, read(t, "testdata/cosign.bundle.json")), shape(t, ours.Bundle.Data)
	delete(theirs["dsseEnvelope"].(map[string]any), "payload") // JSON, compared below
	delete(mine["dsseEnvelope"].(map[string]any), "payload")
	theirs["dsseEnvelope"].(map[string]any)["signatures"], mine["dsseEnvelope"].(map[string]any)["signatures"] = nil, nil
	same(t, "bundle", theirs, mine)

	b, err := parseBundle(read(t, "testdata/cosign.bundle.json"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := parseBundle(ours.Bundle.Data)
	if err != nil {
		t.Fatal(err)
	}
	theirs = shape(t, b.payload)
	delete(theirs["subject"].([]any)[0].(map[string]any), "annotations") // which are empty
	same(t, "statement", theirs, shape(t, own.payload))

	theirs, mine = shape(t, read(t, "testdata/cosign.manifest.json")), shape(t, ours.Manifest.Data)
	for _, m := range []map[string]any{theirs, mine} {
		delete(m, "layers")
		delete(m["config"].(map[string]any), "artifactType") // says the same once more
		delete(m["annotations"].(map[string]any), ocispec.AnnotationCreated)
		delete(m["subject"].(map[string]any), "size")
	}
	same(t, "manifest", theirs, mine)
}

func shape(t *testing.T, data []byte) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func same(t *testing.T, what string, a, b any) {
	t.Helper()
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	if !bytes.Equal(x, y) {
		t.Errorf("%s: cosign's is\n%s\nand ours\n%s", what, x, y)
	}
}

func TestKeys(t *testing.T) {
	other := digest.FromString("another")
	for _, kind := range []string{"P-256", "P-384", "P-521", "ed25519"} {
		private, public := newKey(t, kind)
		key, err := ReadPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		all := []Attached{sign(t, private, signed)}
		if !key.SignedBy(signed, all) || key.SignedBy(other, all) {
			t.Errorf("%s: what is signed is another", kind)
		}
	}
	dir := t.TempDir()
	ec, public := newKey(t, "P-256")
	rsaPrivate, rsaPublic := newKey(t, "rsa")
	_, short := newKey(t, "P-224")
	write(t, dir+"/two", append(read(t, public), read(t, public)...))
	write(t, dir+"/text", []byte("no key"))
	write(t, dir+"/certificate", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	write(t, dir+"/cut", []byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"))
	for path, says := range map[string]string{
		dir + "/none": "no such file", dir + "/two": "more than one", dir + "/text": "PEM", dir + "/certificate": "CERTIFICATE",
		dir + "/cut": "asn1", dir: "is a directory", ec: "private key", rsaPublic: "neither ECDSA nor ed25519", short: "P-224",
	} {
		_, err := ReadPublicKey(path)
		if failure.Hint(err) == "" || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", path, err, says)
		}
		if _, err := NewPolicy(false, nil, map[string][]string{"a.b": {path}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("policy of %s: %v", path, err)
		}
	}
	for path, says := range map[string]string{public: "public key", rsaPrivate: "neither ECDSA nor ed25519", dir + "/text": "PEM", dir + "/none": "no such file"} {
		if _, err := ReadPrivateKey(path, secret); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", path, err, says)
		}
	}
	// Parameters that would take all memory.
	block, _ := pem.Decode(read(t, "testdata/cosign.key"))
	block.Bytes = bytes.Replace(block.Bytes, []byte(`"N":65536`), []byte(`"N":1073741824`), 1)
	write(t, dir+"/greedy", pem.EncodeToMemory(block))
	if _, err := ReadPrivateKey(dir+"/greedy", secret); err == nil || !strings.Contains(err.Error(), "scrypt with N 1073741824") {
		t.Errorf("greedy: %v", err)
	}
}
