package format

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// TestVerified: out of a store that keeps what was verified, frames are checked and not hashed.
func TestVerified(t *testing.T) {
	raw := sample(rand.New(rand.NewPCG(1, 1)), 100*page, false)
	enc, err := NewEncoder(CompressByTwentieth)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	codec, stored := enc.Encode(nil, raw)
	good := Frame{Offset: 7, Codec: codec, Stored: int64(len(stored)), Raw: int64(len(raw))}
	SumFrame(&good, raw)
	path := filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(path, append(make([]byte, 7), stored...), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerified(NewDirectReader(f))
	defer v.Close()
	dec, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	buf := make([]byte, MaxFrame)
	decode := func(f Frame) ([]byte, error) {
		kept, err := v.Frame(&f, buf)
		if err != nil {
			return nil, err
		}
		return dec.DecodeKept(&f, kept)
	}
	if got, err := decode(good); err != nil || !bytes.Equal(got, raw) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	other := good
	other.Digest[0] ^= 1
	if got, err := decode(other); err != nil || !bytes.Equal(got, raw) {
		t.Errorf("the digest was verified: %v", err)
	}
	other = good
	other.Check ^= 1
	if _, err := decode(other); !errdefs.IsDataLoss(err) {
		t.Errorf("the check was not verified: %v", err)
	}
	other = good
	other.Stored++
	if _, err := decode(other); err != io.EOF {
		t.Errorf("behind the end: %v", err)
	}
}
