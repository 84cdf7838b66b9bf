package store

import (
	"context"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
)

// LostName is the repository of the names that snapshots have after the index was rebuilt from blobs: their own names were only there. The tag is the beginning of the digest.
const LostName = "localhost/name-lost"

// mediaTypeUnknown is that of an entry which keeps a blob that a manifest may need which is gone.
const mediaTypeUnknown = "application/octet-stream"

// contents are the manifests among the blobs of a store, and those of their size that are damaged, of which it is not known what they were.
type contents struct {
	manifests map[digest.Digest]ocispec.Descriptor
	listed    map[digest.Digest]bool // by an index
	damaged   []ocispec.Descriptor
	sizes     map[string]int64 // of all blobs
}

func (s *Store) contents(ctx context.Context) (c contents, err error) {
	c = contents{manifests: make(map[digest.Digest]ocispec.Descriptor), listed: make(map[digest.Digest]bool)}
	if c.sizes, err = s.sizes(s.blobs()); err != nil {
		return c, err
	}
	for name, size := range c.sizes {
		d := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, name), Size: size}
		if size > MaxManifest || checkDescriptor(d) != nil {
			continue
		}
		data, err := ReadAll(ctx, s, d, MaxManifest)
		switch {
		case ctx.Err() != nil:
			return c, context.Cause(ctx)
		case errdefs.IsNotFound(err): // collected meanwhile
			continue
		case err != nil:
			c.damaged = append(c.damaged, d)
			continue
		}
		if d.MediaType, d.ArtifactType = manifestType(data); d.MediaType == "" {
			continue
		}
		c.manifests[d.Digest] = d
		if needed, _, err := successors(d, data); err == nil && IsIndex(d.MediaType) {
			for _, n := range needed {
				c.listed[n.Digest] = true
			}
		}
	}
	return c, nil
}

// manifestType returns the media type of a manifest or index, and its artifact type. The media type is empty if data is neither.
func manifestType(data []byte) (mediaType, artifactType string) {
	var m struct {
		ocispec.Manifest
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if format.ManifestJSON.Unmarshal(data, &m) != nil {
		return "", ""
	}
	switch {
	case IsManifest(m.MediaType):
		return m.MediaType, m.ArtifactType
	case m.MediaType != "" || m.SchemaVersion != 2: // manifests of other tools may lack it
		return "", ""
	case checkDigest(m.Config.Digest) == nil:
		return ocispec.MediaTypeImageManifest, m.ArtifactType
	case m.Manifests != nil:
		return ocispec.MediaTypeImageIndex, m.ArtifactType
	}
	return "", ""
}

// rebuilt returns the index of a backup with an entry, which has no name, for each manifest of the store that the backup does not need: index.json may have had it, and
// then it must not be collected.
func (s *Store) rebuilt(ctx context.Context, i ocispec.Index) (ocispec.Index, error) {
	m, err := s.mark(ctx, i)
	if err != nil {
		return i, err
	}
	c, err := s.contents(ctx)
	if err != nil {
		return i, err
	}
	for d, desc := range c.manifests {
		if !m.live[d] {
			i.Manifests = append(i.Manifests, desc)
		}
	}
	return i, nil
}

// rebuiltFromBlobs returns an index that names each snapshot by [LostName], and keeps every other blob: it cannot be known which of them the lost index needed.
func (s *Store) rebuiltFromBlobs(ctx context.Context) (ocispec.Index, error) {
	i := NewIndex()
	c, err := s.contents(ctx)
	if err != nil {
		return i, err
	}
	for _, d := range c.manifests {
		if !c.listed[d.Digest] && (IsIndex(d.MediaType) || d.ArtifactType == image.ArtifactType) {
			ref := LostName + ":" + d.Digest.Encoded()[:12]
			d.Annotations = map[string]string{ocispec.AnnotationRefName: ref, AnnotationName: ref}
		}
		i.Manifests = append(i.Manifests, d)
	}
	named := i
	named.Manifests = i.Manifests[:len(i.Manifests):len(i.Manifests)]
	m, err := s.mark(ctx, named)
	if err != nil {
		return i, err
	}
	for _, d := range c.damaged {
		if !m.live[d.Digest] {
			m.live[d.Digest] = true
			d.MediaType = ocispec.MediaTypeImageManifest // which it may be
			i.Manifests = append(i.Manifests, d)
		}
	}
	for name, size := range c.sizes {
		d := ocispec.Descriptor{MediaType: mediaTypeUnknown, Digest: digest.NewDigestFromEncoded(digest.SHA256, name), Size: size}
		if !m.live[d.Digest] && checkDescriptor(d) == nil && len(i.Manifests) < maxIndexEntries {
			i.Manifests = append(i.Manifests, d)
		}
	}
	return i, nil
}
