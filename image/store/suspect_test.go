package store

import (
	"bytes"
	"os"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestSuspect: of blobs that may be damaged, those that are count as gone and can be stored anew, and those that are not are there as before.
func TestSuspect(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	var blobs []ocispec.Descriptor
	contents := map[digest.Digest][]byte{}
	for _, text := range []string{"whole", "damaged", "never there"} {
		content := bytes.Repeat([]byte(text), 1000)
		d := ocispec.Descriptor{MediaType: "x", Digest: digest.FromBytes(content), Size: int64(len(content))}
		blobs, contents[d.Digest] = append(blobs, d), content
		if text == "never there" {
			continue
		}
		if err := s.Push(ctx, d, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	bad := append([]byte{}, contents[blobs[1].Digest]...)
	bad[17] ^= 1
	if err := os.WriteFile(s.blobPath(blobs[1].Digest), bad, 0o600); err != nil {
		t.Fatal(err)
	}
	if s.Suspects(blobs) {
		t.Error("suspects, and nobody has said so")
	}
	exist := func(want ...bool) {
		t.Helper()
		for i, d := range blobs {
			if got, err := s.Exists(ctx, d); err != nil || got != want[i] {
				t.Errorf("blob %d exists: %t, %v", i, got, err)
			}
		}
	}
	exist(true, true, false)
	if err := s.SuspectBlobs(blobs); err != nil {
		t.Fatal(err)
	}
	if !s.Suspects(blobs) {
		t.Error("suspects nothing")
	}
	if _, err := s.Fetch(ctx, blobs[1]); !errdefs.IsDataLoss(err) {
		t.Errorf("a damaged blob is read: %v", err)
	}
	if _, err := s.Fetch(ctx, blobs[2]); !errdefs.IsNotFound(err) {
		t.Errorf("a blob that is not there: %v", err)
	}
	exist(true, false, false)
	if s.Suspects(blobs[:1]) || !s.Suspects(blobs[1:2]) {
		t.Error("what was found whole is still suspected, or what was found damaged is not")
	}
	if err := s.Push(ctx, blobs[1], bytes.NewReader(contents[blobs[1].Digest])); err != nil {
		t.Fatal(err)
	}
	exist(true, true, false)
	if data, err := ReadAll(ctx, s, blobs[1], 1<<20); err != nil || !bytes.Equal(data, contents[blobs[1].Digest]) {
		t.Errorf("the blob that was stored anew: %v", err)
	}
	if s.Suspects(blobs) {
		t.Error("still suspects what was stored anew")
	}
}
