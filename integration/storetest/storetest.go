package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// Spec says what snapshot to make.
type Spec struct {
	Seed     uint64              // equal seeds give equal snapshots
	Segments []uint64            // one segment each; equal numbers give equal bytes
	Size     int                 // of a segment; 0: 64 KiB
	RootFS   bool                // it has a rootfs difference
	Subject  *ocispec.Descriptor // may be nil
	ChainID  digest.Digest       // of the layers that it stands on; empty: unknown
}

// Open opens a store in a new directory.
func Open(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Bytes are n random bytes that depend on seed alone.
func Bytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	_, _ = r.Read(b)
	return b
}

// Put makes a snapshot in the store and tags it.
func Put(ctx context.Context, s *store.Store, ref string, spec Spec) (ocispec.Descriptor, error) {
	op, err := s.Begin(ctx)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer op.Close()
	if spec.Size == 0 {
		spec.Size = 64 << 10
	}
	config, err := json.Marshal(image.Config{
		Version: image.ConfigVersion, Spec: json.RawMessage(`{"process":{"args":["serve"],"cwd":"/"}}`),
		Container: image.Container{ID: fmt.Sprint(spec.Seed), ChainID: spec.ChainID}, Host: image.Host{OS: "linux", Architecture: "amd64"},
	})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: image.ArtifactType,
		Subject:      spec.Subject,
	}
	if m.Config, err = push(ctx, s, image.MediaTypeConfig, config); err != nil {
		return ocispec.Descriptor{}, err
	}
	add := func(mediaType, title string, data []byte) error {
		d, err := push(ctx, s, mediaType, data)
		if err != nil {
			return err
		}
		d.Annotations = map[string]string{ocispec.AnnotationTitle: title}
		if mediaType != image.MediaTypeSegment {
			d.Annotations[image.AnnotationRawSize] = "0"
		}
		if mediaType == image.MediaTypeRootFS {
			d.Annotations[image.AnnotationRawDigest] = digest.FromBytes(nil).String()
		}
		m.Layers = append(m.Layers, d)
		return nil
	}
	if err := add(image.MediaTypeIndex, "index.zst", Bytes(spec.Seed<<8+1, 900)); err != nil {
		return ocispec.Descriptor{}, err
	}
	if err := add(image.MediaTypeCRIU, "criu.tar.zst", Bytes(spec.Seed<<8+2, 5000)); err != nil {
		return ocispec.Descriptor{}, err
	}
	if spec.RootFS {
		if err := add(image.MediaTypeRootFS, "rootfs.tar.zst", Bytes(spec.Seed<<8+3, 3000)); err != nil {
			return ocispec.Descriptor{}, err
		}
	}
	for i, seed := range spec.Segments {
		if err := add(image.MediaTypeSegment, fmt.Sprintf("segment-%05d", i), Bytes(seed, spec.Size)); err != nil {
			return ocispec.Descriptor{}, err
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d, err := push(ctx, s, m.MediaType, data)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	d.ArtifactType = m.ArtifactType
	return d, s.Tag(ctx, d, ref)
}

// MustPut is [Put] for tests.
func MustPut(t testing.TB, s *store.Store, ref string, spec Spec) ocispec.Descriptor {
	t.Helper()
	d, err := Put(t.Context(), s, ref, spec)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func push(ctx context.Context, s *store.Store, mediaType string, data []byte) (ocispec.Descriptor, error) {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return d, s.Push(ctx, d, bytes.NewReader(data))
}

// Check reports whatever is not as it should be: every reference complete and every blob what its name says.
func Check(ctx context.Context, s *store.Store) error {
	tags, err := s.Tags(ctx)
	if err != nil {
		return err
	}
	for _, t := range tags {
		m, _, err := store.ReadSnapshot(ctx, s, t.Ref, t.Descriptor)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Ref, err)
		}
		for _, d := range append(m.Layers, m.Config) {
			if _, err := store.ReadAll(ctx, s, d, store.MaxBlob); err != nil {
				return fmt.Errorf("%s: %w", t.Ref, err)
			}
		}
	}
	return CheckBlobs(s)
}

// CheckBlobs reads every file in the blob directory.
func CheckBlobs(s *store.Store) error {
	dir := filepath.Join(s.Layout(), "blobs", "sha256")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if os.IsNotExist(err) {
			continue // collected meanwhile
		}
		if err != nil {
			return err
		}
		if digest.FromBytes(data).Encoded() != e.Name() {
			return fmt.Errorf("blob %s does not have this digest", e.Name())
		}
		if i, err := e.Info(); err == nil && i.Mode().Perm() != 0o600 {
			return fmt.Errorf("blob %s has mode %v", e.Name(), i.Mode())
		}
	}
	return nil
}

// Count is how many blobs there are.
func Count(t testing.TB, s *store.Store) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.Layout(), "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
