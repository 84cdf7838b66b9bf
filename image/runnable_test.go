package image

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/record"
)

var (
	lower, upper = digest.FromString("lower"), digest.FromString("upper")
	difference   = digest.FromString("difference")
)

// base is an image of two layers, with one member of its configuration that nobody knows.
func base(t *testing.T, run string) *RunnableBase {
	t.Helper()
	manifest := `{"schemaVersion":2,"layers":[
		{"mediaType":"application/vnd.docker.image.rootfs.diff.tar.gzip","digest":"` + lower.String() + `","size":5},
		{"mediaType":"application/vnd.oci.image.layer.v1.tar+zstd","digest":"` + upper.String() + `","size":6,"annotations":{"kept":"yes"}}]}`
	config := `{"os":"linux","architecture":"arm64","variant":"v8","moby.buildkit.x":"kept","config":` + run + `,
		"rootfs":{"type":"layers","diff_ids":["` + lower.String() + `","` + upper.String() + `"]},
		"history":[{"created_by":"a"},{"created_by":"b","empty_layer":true},{"created_by":"c"}]}`
	b, err := ParseRunnableBase([]byte(manifest), []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// snapshot is one of a container with a process, an object in JSON, and further members of its specification.
func snapshot(t *testing.T, process, more string) *Snapshot {
	t.Helper()
	s := &Snapshot{
		Descriptor: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("snapshot"), Size: 7},
		Config: Config{Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Spec: json.RawMessage(`{"process":` + process + more + `}`),
			Container: Container{ID: "web", ChainID: identity.ChainID([]digest.Digest{lower, upper})}, Host: Host{OS: "linux", Architecture: "amd64"}},
	}
	return s
}

// blobs are read by digest.
type blobs map[digest.Digest][]byte

// Fetch implements [Fetcher].
func (b blobs) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(b[d.Digest])), nil
}

func (b blobs) put(t *testing.T, mediaType string, v any) ocispec.Descriptor {
	data := []byte(text(t, v))
	b[digest.FromBytes(data)] = data
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// withDifference is a snapshot that also has a rootfs difference.
func withDifference(t *testing.T, s *Snapshot) *Snapshot {
	t.Helper()
	b := make(blobs)
	s.Config.Version = ConfigVersion
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ArtifactType, Config: b.put(t, MediaTypeConfig, s.Config),
		Annotations: map[string]string{ocispec.AnnotationBaseImageName: "docker.io/library/app:1", ocispec.AnnotationTitle: "x"},
	}
	for _, l := range [][2]string{{MediaTypeIndex, "index.zst"}, {MediaTypeCRIU, "criu.tar.zst"}, {MediaTypeRootFS, "rootfs.tar.zst"}} {
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: l[0], Digest: digest.FromString(l[1]), Size: 9, Annotations: map[string]string{
			ocispec.AnnotationTitle: l[1], AnnotationRawSize: "1024", AnnotationRawDigest: difference.String(),
		}})
	}
	opened, err := Open(t.Context(), b, b.put(t, ocispec.MediaTypeImageManifest, m))
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// The difference is a layer of the image, the same blob by another name, and its chain ID is the one that the snapshot gives.
func TestDifference(t *testing.T) {
	s := withDifference(t, snapshot(t, `{"args":["a"],"cwd":"/"}`, ""))
	i, err := base(t, "{}").Image(s)
	if err != nil {
		t.Fatal(err)
	}
	config, m := parse[ocispec.Image](t, i.Config), parse[ocispec.Manifest](t, i.Manifest)
	if chain, ok := s.RunnableChain(); !ok || identity.ChainID(config.RootFS.DiffIDs) != chain || len(config.RootFS.DiffIDs) != 3 {
		t.Errorf("the layers are %v, and the snapshot says %s", config.RootFS.DiffIDs, chain)
	}
	if top := m.Layers[2]; top.Digest != digest.FromString("rootfs.tar.zst") || top.Size != 9 || top.MediaType != ocispec.MediaTypeImageLayerZstd || top.Annotations != nil {
		t.Errorf("the upmost layer is %+v", top)
	}
	if h := config.History; len(h) != 4 || !h[3].Created.Equal(s.Config.Created) {
		t.Errorf("the history is %+v", h)
	}
	if want := map[string]string{ocispec.AnnotationBaseImageName: "docker.io/library/app:1"}; !maps.Equal(m.Annotations, want) {
		t.Errorf("the annotations are %v", m.Annotations)
	}
}

func parse[T any](t *testing.T, b record.Blob) (v T) {
	t.Helper()
	if b.Descriptor.Digest != digest.FromBytes(b.Data) || b.Descriptor.Size != int64(len(b.Data)) {
		t.Errorf("%s is described as %v", b.Data, b.Descriptor)
	}
	if err := json.Unmarshal(b.Data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestImage(t *testing.T) {
	b := base(t, `{"Env":["A=b"],"User":"9","Entrypoint":["/entry"],"Cmd":["old"],"WorkingDir":"/old","Labels":{"l":"1"},"Healthcheck":{"Test":["NONE"]}}`)
	s := snapshot(t, `{"args":["/entry","serve","-v"],"cwd":"/work"}`, "")
	i, err := b.Image(s)
	if err != nil {
		t.Fatal(err)
	}
	config := parse[ocispec.Image](t, i.Config)
	if c := config.Config; !slices.Equal(c.Env, []string{"A=b"}) || c.User != "9" || !slices.Equal(c.Entrypoint, []string{"/entry"}) || !slices.Equal(c.Cmd, []string{"serve", "-v"}) ||
		c.WorkingDir != "/work" || c.Labels["l"] != "1" || c.Labels[RunnableLabel] != s.Descriptor.Digest.String() {
		t.Errorf("it is run as %+v", c)
	}
	for _, kept := range []string{`"moby.buildkit.x":"kept"`, `"Healthcheck":{"Test":["NONE"]}`, `"variant":"v8"`} {
		if !strings.Contains(string(i.Config.Data), kept) {
			t.Errorf("it lost %s:\n%s", kept, i.Config.Data)
		}
	}
	if got := identity.ChainID(config.RootFS.DiffIDs); got != s.Config.Container.ChainID || config.Architecture != "arm64" || !config.Created.Equal(s.Config.Created) {
		t.Errorf("the configuration is %+v", config)
	}
	m := parse[ocispec.Manifest](t, i.Manifest)
	want := []ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: lower, Size: 5}, {MediaType: ocispec.MediaTypeImageLayerZstd, Digest: upper, Size: 6}}
	if !slices.EqualFunc(m.Layers, want, func(a, b ocispec.Descriptor) bool {
		return a.MediaType == b.MediaType && a.Digest == b.Digest && a.Size == b.Size
	}) || m.Config.Digest != i.Config.Descriptor.Digest || m.ArtifactType != "" {
		t.Errorf("the manifest is %+v", m)
	}
	x := parse[ocispec.Index](t, i.Index)
	if len(x.Manifests) != 2 || x.Manifests[0].Digest != i.Manifest.Descriptor.Digest || x.Manifests[0].Platform.Architecture != "arm64" || x.Manifests[0].ArtifactType != "" ||
		x.Manifests[1].Digest != s.Descriptor.Digest || x.Manifests[1].Platform.OS != "unknown" || !IsEntry(x.Manifests[1]) || x.Manifests[1].ArtifactType == "" || IsEntry(x.Manifests[0]) {
		t.Errorf("the index is %+v", x.Manifests)
	}
	again, err := b.Image(s)
	if err != nil || again.Index.Descriptor.Digest != i.Index.Descriptor.Digest {
		t.Errorf("made again: %v, %v", again, err)
	}
	if got := parse[ocispec.Image](t, i.Config).History; len(got) != 3 {
		t.Errorf("without a difference it has a history of %d", len(got))
	}
}

func TestCommand(t *testing.T) {
	for _, test := range []struct{ entrypoint, args, keeps, cmd []string }{
		{nil, []string{"a", "b"}, nil, []string{"a", "b"}},
		{[]string{"a"}, []string{"a", "b"}, []string{"a"}, []string{"b"}},
		{[]string{"a"}, []string{"a"}, []string{"a"}, nil},
		{[]string{"a", "b"}, []string{"a"}, nil, []string{"a"}},
		{[]string{"a"}, []string{"b", "a"}, nil, []string{"b", "a"}},
	} {
		b := base(t, `{"Entrypoint":`+text(t, test.entrypoint)+`,"Cmd":["old"]}`)
		i, err := b.Image(snapshot(t, `{"args":`+text(t, test.args)+`,"cwd":"/"}`, ""))
		if err != nil {
			t.Fatal(err)
		}
		if c := parse[ocispec.Image](t, i.Config).Config; !slices.Equal(c.Entrypoint, test.keeps) || !slices.Equal(c.Cmd, test.cmd) {
			t.Errorf("%v over %v: entry point %v, command %v", test.args, test.entrypoint, c.Entrypoint, c.Cmd)
		}
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Some snapshots and base images make no image.
func TestNone(t *testing.T) {
	process := `{"args":["a"],"cwd":"/"}`
	for name, s := range map[string]*Snapshot{
		"mapped users":   snapshot(t, process, `,"linux":{"uidMappings":[{"containerID":0,"hostID":100000,"size":65536}]}`),
		"no command":     snapshot(t, `{"cwd":"/"}`, ""),
		"no process":     snapshot(t, "null", ""),
		"other layers":   {Config: Config{Spec: json.RawMessage(`{"process":` + process + `}`), Container: Container{ChainID: lower}}},
		"unknown layers": {Config: Config{Spec: json.RawMessage(`{"process":` + process + `}`)}},
		"broken":         {Config: Config{Spec: json.RawMessage(`{`)}},
	} {
		if i, err := base(t, "null").Image(s); err == nil {
			t.Errorf("%s: there is an image %v", name, i)
		}
	}
	if i, err := base(t, "null").Image(snapshot(t, process, "")); err != nil || len(parse[ocispec.Image](t, i.Config).Config.Labels) != 1 {
		t.Errorf("of a base image that does not say how to run it: %v, %v", i, err)
	}
	if i, err := base(t, "{}").Image(snapshot(t, process, `,"linux":{"uidMappings":[{"containerID":0,"hostID":0,"size":65536}]}`)); err != nil {
		t.Errorf("with ids that are mapped to themselves: %v, %v", i, err)
	}
	layer := func(mediaType string) string {
		return `{"layers":[{"mediaType":"` + mediaType + `","digest":"` + lower.String() + `","size":5}]}`
	}
	config := `{"rootfs":{"diff_ids":["` + lower.String() + `"]}}`
	for name, test := range map[string]struct {
		manifest, config string
		kind             func(error) bool
	}{
		"foreign layer":       {layer("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), config, errdefs.IsNotImplemented},
		"encrypted layer":     {layer("application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), config, errdefs.IsNotImplemented},
		"layers without name": {layer(ocispec.MediaTypeImageLayerGzip), `{}`, errdefs.IsDataLoss},
		"no JSON":             {`{`, `{}`, errdefs.IsDataLoss},
		"no JSON below":       {`{}`, `[]`, errdefs.IsDataLoss},
		"null":                {`{}`, `null`, errdefs.IsDataLoss},
		"another shape":       {`{}`, `{"rootfs":7}`, errdefs.IsDataLoss},
	} {
		if b, err := ParseRunnableBase([]byte(test.manifest), []byte(test.config)); !test.kind(err) {
			t.Errorf("%s: %v, %v", name, b, err)
		}
	}
}
