package store

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
)

// Limits of what is read into memory or trusted to be fetched.
const (
	// MaxManifest is the most bytes a manifest may have; registries take no more.
	MaxManifest = 4 << 20
	// MaxBlob is the most bytes a blob may have.
	MaxBlob = 1 << 40
	// MaxLayers is the most layers a manifest may list.
	MaxLayers = 1 << 15
	// MaxEntries is the most manifests that the index of a snapshot may list.
	MaxEntries = 1 << 10
)

// Docker's media types of what OCI calls manifest and index.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// checkDigest accepts sha256 and nothing else: digests become file names.
func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %.80q: %w", string(d), err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest %.80q: not sha256", string(d))
	}
	return nil
}

func checkDescriptor(d ocispec.Descriptor) error {
	if err := checkDigest(d.Digest); err != nil {
		return err
	}
	if d.Size < 0 || d.Size > MaxBlob {
		return fmt.Errorf("%s: size %d out of range", d.Digest, d.Size)
	}
	return nil
}

// ReadAll fetches a blob of at most limit bytes and verifies it.
func ReadAll(ctx context.Context, src content.Fetcher, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := checkDescriptor(d); err != nil {
		return nil, Corrupt("descriptor", err)
	}
	if d.Size > limit {
		return nil, Corrupt("blob "+d.Digest.String(), fmt.Errorf("%d bytes where at most %d are allowed", d.Size, limit))
	}
	rc, err := src.Fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	data, err := io.ReadAll(io.LimitReader(rc, d.Size+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", d.Digest, err)
	}
	if int64(len(data)) != d.Size {
		return nil, Corrupt("blob "+d.Digest.String(), fmt.Errorf("not the %d bytes it should have", d.Size))
	}
	if digest.FromBytes(data) != d.Digest {
		return nil, Corrupt("blob "+d.Digest.String(), errDigest)
	}
	return data, nil
}

var errDigest = errors.New("content does not have this digest")

// ParseSnapshot checks that data is the manifest of a snapshot and that all it lists is within bounds. ref names it in errors.
func ParseSnapshot(ref string, d ocispec.Descriptor, data []byte) (ocispec.Manifest, error) {
	var m ocispec.Manifest
	if d.MediaType != ocispec.MediaTypeImageManifest {
		return m, notSnapshot(ref, d.MediaType, "")
	}
	if err := format.ManifestJSON.Unmarshal(data, &m); err != nil {
		return m, Corrupt("manifest of "+ref, err)
	}
	if m.MediaType != "" && m.MediaType != d.MediaType {
		return m, Corrupt("manifest of "+ref, fmt.Errorf("it says to be %.80q", m.MediaType))
	}
	if m.ArtifactType != image.ArtifactType {
		return m, notSnapshot(ref, d.MediaType, m.ArtifactType)
	}
	if err := checkManifest(m); err != nil {
		return m, Corrupt("manifest of "+ref, err)
	}
	return m, image.CheckContents(m.Layers)
}

// ReadSnapshot fetches the manifest of a snapshot, and checks it as [ParseSnapshot] does.
func ReadSnapshot(ctx context.Context, src content.Fetcher, ref string, d ocispec.Descriptor) (m ocispec.Manifest, data []byte, err error) {
	if data, err = ReadAll(ctx, src, d, MaxManifest); err != nil {
		return m, nil, err
	}
	m, err = ParseSnapshot(ref, d, data)
	return m, data, err
}

// Blobs lists what a manifest needs, each blob once: equal segments are one.
func Blobs(m ocispec.Manifest) []ocispec.Descriptor {
	return Unique(append([]ocispec.Descriptor{m.Config}, m.Layers...))
}

// Unique drops repetitions.
func Unique(all []ocispec.Descriptor) (once []ocispec.Descriptor) {
	seen := make(map[digest.Digest]bool, len(all))
	for _, d := range all {
		if !seen[d.Digest] {
			seen[d.Digest] = true
			once = append(once, d)
		}
	}
	return once
}

// ParseRunnable finds the snapshot in an index of two entries, an ordinary image and the snapshot that it belongs to. It also gives all entries. An
// index without a snapshot is of kind DataLoss, one with several, or with nonsense, a [ErrCorrupt]. ref names it in errors.
func ParseRunnable(ref string, d ocispec.Descriptor, data []byte) (snapshot ocispec.Descriptor, entries []ocispec.Descriptor, err error) {
	corrupt := func(format string, args ...any) error {
		return Corrupt("index of "+ref, fmt.Errorf(format, args...))
	}
	var i ocispec.Index
	if err := format.ManifestJSON.Unmarshal(data, &i); err != nil {
		return snapshot, nil, corrupt("%w", err)
	}
	if i.MediaType != "" && i.MediaType != d.MediaType {
		return snapshot, nil, corrupt("it says to be %.80q", i.MediaType)
	}
	if i.ArtifactType == image.GroupType {
		g, err := image.ParseGroup(data)
		if err == nil {
			err = g.NotOne(ref)
		}
		return snapshot, nil, err
	}
	if len(i.Manifests) > MaxEntries {
		return snapshot, nil, corrupt("%d entries, at most %d are allowed", len(i.Manifests), MaxEntries)
	}
	found := 0
	for _, e := range i.Manifests {
		if err := checkDescriptor(e); err != nil {
			return snapshot, nil, corrupt("%w", err)
		}
		if image.IsEntry(e) {
			snapshot = ocispec.Descriptor{MediaType: e.MediaType, Digest: e.Digest, Size: e.Size}
			found++
		}
	}
	switch {
	case found == 0:
		return snapshot, nil, notSnapshot(ref, d.MediaType, "")
	case found > 1:
		return snapshot, nil, corrupt("%d of its entries are snapshots; name one by its digest", found)
	case snapshot.MediaType != ocispec.MediaTypeImageManifest:
		return snapshot, nil, corrupt("the media type of its snapshot is %.80q", snapshot.MediaType)
	case snapshot.Size > MaxManifest:
		return snapshot, nil, corrupt("the manifest of its snapshot has %d bytes, at most %d are allowed", snapshot.Size, MaxManifest)
	}
	return snapshot, i.Manifests, nil
}

// IsIndex reports whether a media type is one of an index.
func IsIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == dockerList
}

func checkManifest(m ocispec.Manifest) error {
	if len(m.Layers) > MaxLayers {
		return fmt.Errorf("%d layers, at most %d are allowed", len(m.Layers), MaxLayers)
	}
	sizes := make(map[digest.Digest]int64, len(m.Layers)+1)
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if err := checkDescriptor(d); err != nil {
			return err
		}
		if size, ok := sizes[d.Digest]; ok && size != d.Size {
			return fmt.Errorf("%s is listed with %d and with %d bytes", d.Digest, size, d.Size)
		}
		sizes[d.Digest] = d.Size
	}
	return nil
}

// successors lists what the manifest or index d needs: nothing for any other blob. The subject is not needed, but is kept
// where the store has it: optional says so.
func successors(d ocispec.Descriptor, data []byte) (needed, optional []ocispec.Descriptor, err error) {
	var subject *ocispec.Descriptor
	switch d.MediaType {
	case ocispec.MediaTypeImageManifest, dockerManifest:
		var m ocispec.Manifest
		if err := format.ManifestJSON.Unmarshal(data, &m); err != nil {
			return nil, nil, err
		}
		needed, subject = append([]ocispec.Descriptor{m.Config}, m.Layers...), m.Subject
	case ocispec.MediaTypeImageIndex, dockerList:
		var i ocispec.Index
		if err := format.ManifestJSON.Unmarshal(data, &i); err != nil {
			return nil, nil, err
		}
		needed, subject = i.Manifests, i.Subject
	}
	if subject != nil {
		optional = append(optional, *subject)
	}
	for _, n := range append(needed[:len(needed):len(needed)], optional...) {
		if err := checkDescriptor(n); err != nil {
			return nil, nil, err
		}
	}
	return needed, optional, nil
}

// IsManifest reports whether a media type is one of a manifest or index.
func IsManifest(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex, dockerManifest, dockerList:
		return true
	}
	return false
}
