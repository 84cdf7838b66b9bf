package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimespec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/record"
)

// RunnableLabel is the label of an image that has a snapshot: the digest of the snapshot's manifest.
const RunnableLabel = "io.cryo.image.snapshot"

// layerTypes are the media types of layers that an image may have, and OCI's names for them: Docker's are the same bytes by another name.
var layerTypes = map[string]string{
	ocispec.MediaTypeImageLayer:                         ocispec.MediaTypeImageLayer,
	ocispec.MediaTypeImageLayerGzip:                     ocispec.MediaTypeImageLayerGzip,
	ocispec.MediaTypeImageLayerZstd:                     ocispec.MediaTypeImageLayerZstd,
	"application/vnd.docker.image.rootfs.diff.tar":      ocispec.MediaTypeImageLayer,
	"application/vnd.docker.image.rootfs.diff.tar.gzip": ocispec.MediaTypeImageLayerGzip,
	"application/vnd.docker.image.rootfs.diff.tar.zstd": ocispec.MediaTypeImageLayerZstd,
}

// RunnableBase is the base image of a snapshot, for one platform.
type RunnableBase struct {
	layers []ocispec.Descriptor // with OCI's media types
	config members
	read   ocispec.Image // config, as far as it is known
}

// ParseRunnableBase reads the manifest and the configuration of a base image, which the caller has verified. An image that cannot have another layer on top is an
// errdefs.ErrNotImplemented.
func ParseRunnableBase(manifest, config []byte) (*RunnableBase, error) {
	var m ocispec.Manifest
	if err := format.ManifestJSON.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("read the base image's manifest: %w: %w", err, errdefs.ErrDataLoss)
	}
	b := &RunnableBase{}
	if err := format.ImageJSON.Unmarshal(config, &b.config); err != nil {
		return nil, fmt.Errorf("read the base image's configuration: %w: %w", err, errdefs.ErrDataLoss)
	}
	if b.config == nil {
		return nil, fmt.Errorf("the base image's configuration is null: %w", errdefs.ErrDataLoss)
	}
	if err := format.ImageJSON.Unmarshal(config, &b.read); err != nil {
		return nil, fmt.Errorf("read the base image's configuration: %w: %w", err, errdefs.ErrDataLoss)
	}
	if len(m.Layers) != len(b.read.RootFS.DiffIDs) {
		return nil, fmt.Errorf("the base image has %d layers, and its configuration %d: %w", len(m.Layers), len(b.read.RootFS.DiffIDs), errdefs.ErrDataLoss)
	}
	for _, l := range m.Layers {
		name, ok := layerTypes[l.MediaType]
		if !ok {
			return nil, fmt.Errorf("the base image has a layer of type %.100q, on which no other can stand: %w", l.MediaType, errdefs.ErrNotImplemented)
		}
		b.layers = append(b.layers, ocispec.Descriptor{MediaType: name, Digest: l.Digest, Size: l.Size, Annotations: l.Annotations})
	}
	return b, nil
}

// ChainID is that of the layers.
func (b *RunnableBase) ChainID() digest.Digest { return identity.ChainID(b.read.RootFS.DiffIDs) }

// Layers are those of the base image, lowest first.
func (b *RunnableBase) Layers() []ocispec.Descriptor { return b.layers }

// Runnable is an image with a snapshot. Its layers are those of the base image, and the snapshot's rootfs difference.
type Runnable struct {
	Config   record.Blob
	Manifest record.Blob // its descriptor has the platform
	Index    record.Blob // what the name stands for
}

// CheckRunnable returns why no image can be made of a snapshot with this config, whatever its base image; nil: one can.
func CheckRunnable(c Config) error {
	var spec runtimespec.Spec
	if err := json.Unmarshal(c.Spec, &spec); err != nil {
		return fmt.Errorf("read the snapshot's runtime specification: %w: %w", err, errdefs.ErrDataLoss)
	}
	if c.Container.ChainID == "" {
		return failure.New(errdefs.ErrNotImplemented, "", "the snapshot does not say on which layers it stands")
	}
	if spec.Process == nil || len(spec.Process.Args) == 0 {
		return failure.New(errdefs.ErrNotImplemented, "", "its container was created without a command")
	}
	if l := spec.Linux; l != nil && (shifted(l.UIDMappings) || shifted(l.GIDMappings)) {
		return failure.New(errdefs.ErrNotImplemented, "", "its files belong to the users that the container's user namespace maps to")
	}
	return nil
}

// shifted reports whether ids in the container are other ids outside.
func shifted(mappings []runtimespec.LinuxIDMapping) bool {
	return slices.ContainsFunc(mappings, func(m runtimespec.LinuxIDMapping) bool { return m.ContainerID != m.HostID })
}

// Image makes the image of a snapshot that [CheckRunnable] has no objection to. The same snapshot and base image give the same image, byte for byte.
func (b *RunnableBase) Image(s *Snapshot) (*Runnable, error) {
	if err := CheckRunnable(s.Config); err != nil {
		return nil, err
	}
	if got, want := b.ChainID(), s.Config.Container.ChainID; got != want {
		return nil, fmt.Errorf("the layers of the base image have the chain ID %s, and the snapshot stands on %s: %w", got, want, errdefs.ErrFailedPrecondition)
	}
	layers := slices.Clone(b.layers)
	diffs := slices.Clone(b.read.RootFS.DiffIDs)
	difference, changed := s.RootFS()
	if changed {
		layers = append(layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerZstd, Digest: difference.Digest, Size: difference.Size})
		diffs = append(diffs, digest.Digest(difference.Annotations[AnnotationRawDigest]))
	}
	config, err := b.newConfig(s, diffs, changed)
	if err != nil {
		return nil, fmt.Errorf("write the image's configuration: %w", err)
	}
	i := &Runnable{Config: record.BlobOf(ocispec.MediaTypeImageConfig, config)}
	annotations := make(map[string]string)
	for _, key := range []string{ocispec.AnnotationCreated, ocispec.AnnotationBaseImageName, ocispec.AnnotationBaseImageDigest} {
		if value := s.Manifest.Annotations[key]; value != "" {
			annotations[key] = value
		}
	}
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: i.Config.Descriptor, Layers: layers, Annotations: annotations,
	})
	if err != nil {
		return nil, fmt.Errorf("write the image's manifest: %w", err)
	}
	i.Manifest = record.BlobOf(ocispec.MediaTypeImageManifest, manifest)
	platform := b.platform(s)
	i.Manifest.Descriptor.Platform = &platform
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{i.Manifest.Descriptor, {
			MediaType: s.Descriptor.MediaType, Digest: s.Descriptor.Digest, Size: s.Descriptor.Size, ArtifactType: ArtifactType,
			Annotations: map[string]string{AnnotationArtifactType: ArtifactType},
			// No client takes this for the image of a platform: they know it from attestations of builds.
			Platform: &ocispec.Platform{OS: "unknown", Architecture: "unknown"},
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("write the index: %w", err)
	}
	i.Index = record.BlobOf(ocispec.MediaTypeImageIndex, index)
	return i, nil
}

// platform is the base image's; of what that does not say, the host's that the snapshot was taken on.
func (b *RunnableBase) platform(s *Snapshot) ocispec.Platform {
	p := b.read.Platform
	if p.OS == "" || p.Architecture == "" {
		return ocispec.Platform{OS: s.Config.Host.OS, Architecture: s.Config.Host.Architecture}
	}
	return p
}

// newConfig is the base image's configuration with what is different: members that are not known here stay.
func (b *RunnableBase) newConfig(s *Snapshot, diffs []digest.Digest, changed bool) ([]byte, error) {
	var spec runtimespec.Spec
	if err := json.Unmarshal(s.Config.Spec, &spec); err != nil {
		return nil, err
	}
	var run members // how to run it
	if raw := b.config["config"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &run); err != nil {
			return nil, err
		}
	}
	if run == nil {
		run = make(members)
	}
	labels := map[string]string{}
	maps.Copy(labels, b.read.Config.Labels)
	labels[RunnableLabel] = s.Descriptor.Digest.String()
	entrypoint, cmd := command(b.read.Config.Entrypoint, spec.Process.Args)
	err := errors.Join(run.set("Labels", labels), run.set("Entrypoint", entrypoint), run.set("Cmd", cmd), run.set("WorkingDir", spec.Process.Cwd))

	config, platform := maps.Clone(b.config), b.platform(s)
	err = errors.Join(err, config.set("config", run), config.set("os", platform.OS), config.set("architecture", platform.Architecture),
		config.set("rootfs", ocispec.RootFS{Type: "layers", DiffIDs: diffs}))
	created := s.Config.Created.UTC()
	if !created.IsZero() {
		err = errors.Join(err, config.set("created", created))
	}
	if changed && (len(b.read.History) > 0 || len(b.layers) == 0) { // it has an entry for each layer, or none at all
		err = errors.Join(err, config.set("history", append(slices.Clone(b.read.History), ocispec.History{
			Created: &created, CreatedBy: "cryo checkpoint", Comment: "files changed by container " + s.Config.Container.ID,
		})))
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(config)
}

// members are those of a JSON object.
type members map[string]json.RawMessage

// set sets a member; nothing of its kind removes it.
func (m members) set(name string, value any) error {
	if v := reflect.ValueOf(value); v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
		delete(m, name)
		return nil
	}
	raw, err := json.Marshal(value)
	m[name] = raw
	return err
}

// command splits the command of a container as an image says it: where it begins with the entry point of its base image, that stays.
func command(entrypoint, args []string) (_, cmd []string) {
	if n := len(entrypoint); n > 0 && len(args) >= n && slices.Equal(entrypoint, args[:n]) {
		return entrypoint, args[n:]
	}
	return nil, args
}
