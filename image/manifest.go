package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// AnnotationContainerID is the manifest's annotation with the container's name.
const AnnotationContainerID = "io.cryo.container.id"

// AnnotationArtifactType is the artifact type of a snapshot once more, on its entry of an index. Programs that copy an index may write the entries again without
// their artifactType, which OCI 1.0 does not have: skopeo 1.9 does.
const AnnotationArtifactType = "io.cryo.artifact.type"

// IsEntry reports whether an entry of an index says that it is a snapshot.
func IsEntry(d ocispec.Descriptor) bool {
	return d.ArtifactType == ArtifactType || d.ArtifactType == "" && d.Annotations[AnnotationArtifactType] == ArtifactType
}

// Titles of the layers; oras pull makes files of these names.
const (
	titleIndex  = "index.zst"
	titleCRIU   = "criu.tar.zst"
	titleRootFS = "rootfs.tar.zst"
)

func titleSegment(n int) string { return fmt.Sprintf("segment-%05d", n) }

// Limits of what is read as a whole, in bytes. Registries and clients take manifests of 4 MiB.
const (
	maxManifest = 4 << 20
	maxConfig   = 16 << 20
)

// maxSegments is what a manifest of 4 MiB holds with room to spare: 235 bytes each.
const maxSegments = 15000

func newManifest(cfg Config, config ocispec.Descriptor, layers []ocispec.Descriptor, subject *ocispec.Descriptor) ocispec.Manifest {
	if subject != nil {
		subject = &ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}
	}
	return ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactType,
		Config:       config,
		Layers:       layers,
		Subject:      subject,
		Annotations:  annotations(cfg),
	}
}

// layout is where a manifest's layers are.
type layout struct {
	rootFS   bool
	segments int // index of the first one
}

// parseManifest reads a manifest and checks that it is one of a snapshot.
func parseManifest(b []byte, d digest.Digest) (m ocispec.Manifest, l layout, err error) {
	not := func(format string, args ...any) error {
		return notSnapshot(d, format, args...)
	}
	if err := format.ManifestJSON.Unmarshal(b, &m); err != nil {
		return m, l, not("its manifest is not JSON of the right shape: %v", err)
	}
	if m.MediaType != ocispec.MediaTypeImageManifest || m.SchemaVersion != 2 {
		return m, l, not("its media type is %.100q", m.MediaType)
	}
	if m.ArtifactType != ArtifactType {
		if v, ok := strings.CutPrefix(m.ArtifactType, "application/vnd.cryo.snapshot."); ok {
			return m, l, otherVersion("manifest", fmt.Sprintf("%.100s", v))
		}
		return m, l, not("its artifact type is %.100q", m.ArtifactType)
	}
	if m.Config.MediaType != MediaTypeConfig {
		return m, l, not("the media type of its config is %.100q", m.Config.MediaType)
	}
	if l, err = checkLayers(m.Layers); err != nil {
		return m, l, not("%v", err)
	}
	for _, part := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if !validDigest(part.Digest) || part.Size < 1 {
			return m, l, not("the descriptor %.100q is not valid", part.Digest)
		}
	}
	return m, l, nil
}

// checkLayers reports whether layers are index, CRIU's images, the rootfs where there is one, and segments.
func checkLayers(layers []ocispec.Descriptor) (layout, error) {
	var l layout
	is := func(i int, mediaType, title string) bool {
		return i < len(layers) && layers[i].MediaType == mediaType && layers[i].Annotations[ocispec.AnnotationTitle] == title
	}
	if !is(0, MediaTypeIndex, titleIndex) || !is(1, MediaTypeCRIU, titleCRIU) {
		return l, errors.New("it does not begin with an index and CRIU's images")
	}
	l.rootFS = is(2, MediaTypeRootFS, titleRootFS)
	l.segments = 2
	if l.rootFS {
		l.segments = 3
	}
	if n := len(layers) - l.segments; n > maxSegments {
		return l, fmt.Errorf("%d segments are more than %d", n, maxSegments)
	}
	for i := l.segments; i < len(layers); i++ {
		if !is(i, MediaTypeSegment, titleSegment(i-l.segments)) {
			return l, fmt.Errorf("layer %d is not segment %d", i, i-l.segments)
		}
	}
	return l, nil
}

// parseConfig reads a config blob.
func parseConfig(b []byte, d digest.Digest) (Config, error) {
	c, err := decodeConfig(b)
	if err != nil && !errdefs.IsNotImplemented(err) {
		return Config{}, damaged("config", d, err)
	}
	return c, err
}

// decodeConfig reads a config, and returns an error that says what cannot be so.
func decodeConfig(b []byte) (c Config, err error) {
	if err := configLimits.Check(b); err != nil {
		return c, err
	}
	var version struct{ Version int }
	if err := json.Unmarshal(b, &version); err != nil {
		return c, fmt.Errorf("it is not JSON of the right shape: %w", err)
	}
	if version.Version != ConfigVersion {
		return c, otherVersion("config", fmt.Sprint(version.Version))
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("it is not JSON of the right shape: %w", err)
	}
	if err := c.checkNumbers(); err != nil {
		return c, err
	}
	m := c.Memory
	if m.Total < 0 || m.Zero < 0 || m.Stored < 0 || m.Zero > m.Total || m.Device < 0 || m.Device > m.Total {
		return c, errors.New("its memory totals are not possible")
	}
	if m.Unused < 0 || m.Unused > m.Stored/2 {
		return c, errors.New("more than half of its memory is not in use")
	}
	if id := c.Container.ChainID; id != "" && !validDigest(id) {
		return c, fmt.Errorf("the chain ID %.100q of its base image is not valid", id)
	}
	if p := c.Parent; p != nil && (!validDigest(p.Digest) || p.Segments < 0 || p.Segments > maxSegments) {
		return c, errors.New("its parent is not possible")
	}
	if c.GPU != nil {
		if e := c.GPU.Engine; e != DriverEngine && e != KeeperEngine {
			return c, otherVersion("GPU engine", fmt.Sprintf("%.100s", e))
		}
		return c, c.GPU.Check()
	}
	return c, nil
}
