package signature

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/record"
)

// MediaType is that of a bundle, and the artifact type of the manifest that it hangs on.
const MediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Bounds of what is looked at: every user who may write to a repository may attach signatures to what is there.
const (
	MaxAttached = 32       // signatures of a snapshot
	MaxSize     = 64 << 10 // bytes of a manifest of one, and of a bundle
)

// annotationPredicate says what the statement in a bundle is about.
const annotationPredicate = "dev.sigstore.bundle.predicateType"

// Attached is a signature as registries and stores keep it.
type Attached struct {
	Manifest record.Blob
	Bundle   record.Blob
	Err      error // it is damaged: there may be no Bundle
}

// Blobs are the parts that a registry or a store needs before the manifest.
func (a Attached) Blobs() []record.Blob {
	return []record.Blob{{Descriptor: ocispec.DescriptorEmptyJSON, Data: ocispec.DescriptorEmptyJSON.Data}, a.Bundle}
}

// Attach makes what hangs a bundle on a subject.
func Attach(subject ocispec.Descriptor, bundle []byte, created time.Time) (Attached, error) {
	a := Attached{Bundle: record.BlobOf(MediaType, bundle)}
	config := ocispec.DescriptorEmptyJSON
	config.Data = nil
	data, err := json.Marshal(ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: MediaType,
		Config:       config,
		Layers:       []ocispec.Descriptor{a.Bundle.Descriptor},
		Subject:      &ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Annotations: map[string]string{
			"dev.sigstore.bundle.content": "dsse-envelope",
			annotationPredicate:           predicateType,
			ocispec.AnnotationCreated:     created.UTC().Format(time.RFC3339),
		},
	})
	if err != nil {
		return a, fmt.Errorf("write the manifest of a signature: %w", err)
	}
	a.Manifest = record.BlobOf(ocispec.MediaTypeImageManifest, data)
	a.Manifest.Descriptor.ArtifactType = MediaType
	return a, nil
}

// Add signs a subject as [Sign] and [Attach] do, unless the key is one of those that have signed it: then it gives none.
func (k *PrivateKey) Add(subject ocispec.Descriptor, have []Attached) ([]Attached, error) {
	if k.Public.SignedBy(subject.Digest, have) {
		return nil, nil
	}
	bundle, err := Sign(k, subject.Digest)
	if err != nil {
		return nil, err
	}
	made, err := Attach(subject, bundle, time.Now())
	return []Attached{made}, err
}

// Candidate reports whether a descriptor in a list of referrers, or in an index, may be that of a signature.
func Candidate(d ocispec.Descriptor) bool {
	predicate, named := d.Annotations[annotationPredicate]
	return d.ArtifactType == MediaType && d.MediaType == ocispec.MediaTypeImageManifest && (!named || predicate == predicateType)
}

// Fetch reads a blob of at most limit bytes and verifies it. What is damaged or missing is an errdefs.ErrDataLoss or errdefs.ErrNotFound.
type Fetch func(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error)

// Read fetches the signature of subject whose manifest is d. One that is damaged says so itself: it does not spoil others.
func Read(ctx context.Context, fetch Fetch, d ocispec.Descriptor, subject digest.Digest) (Attached, error) {
	a := Attached{Manifest: record.Blob{Descriptor: ocispec.Descriptor{MediaType: d.MediaType, ArtifactType: MediaType, Digest: d.Digest, Size: d.Size}}}
	err := a.read(ctx, fetch, subject)
	if errdefs.IsDataLoss(err) || errdefs.IsNotFound(err) {
		a.Err, err = err, nil
	}
	return a, err
}

func (a *Attached) read(ctx context.Context, fetch Fetch, subject digest.Digest) (err error) {
	if a.Manifest.Data, err = fetch(ctx, a.Manifest.Descriptor, MaxSize); err != nil {
		return err
	}
	layer, err := parseManifest(a.Manifest.Data, subject)
	if err != nil {
		return err
	}
	a.Bundle.Descriptor = layer
	a.Bundle.Data, err = fetch(ctx, layer, MaxSize)
	return err
}

// Subject is the digest of what a manifest refers to; empty if it refers to nothing.
func Subject(manifest []byte) digest.Digest {
	var m struct {
		Subject ocispec.Descriptor `json:"subject"`
	}
	if format.ManifestJSON.Unmarshal(manifest, &m) != nil {
		return ""
	}
	return m.Subject.Digest
}

// parseManifest returns the bundle of a signature's manifest.
func parseManifest(data []byte, subject digest.Digest) (bundle ocispec.Descriptor, err error) {
	var m ocispec.Manifest
	if err := format.SmallJSON.Unmarshal(data, &m); err != nil {
		return bundle, damagedf("read its manifest: %v", err)
	}
	switch {
	case m.ArtifactType != MediaType:
		return bundle, damagedf("its manifest is of another kind")
	case m.Subject == nil || m.Subject.Digest != subject:
		return bundle, damagedf("its manifest has another subject")
	case m.Config.Digest != ocispec.DescriptorEmptyJSON.Digest:
		return bundle, damagedf("its manifest has a config that is not empty")
	case len(m.Layers) != 1 || m.Layers[0].MediaType != MediaType:
		return bundle, damagedf("its manifest lists something else than one bundle")
	}
	d := m.Layers[0]
	return ocispec.Descriptor{MediaType: MediaType, Digest: d.Digest, Size: d.Size}, nil
}
