package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	imagespecs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// forger makes snapshots whose config says what no checkpoint would write, out of one that is real.
type forger struct {
	dir      string // OCI image layout
	manifest ocispec.Manifest
	config   []byte
}

// newForger starts from a snapshot of host a's.
func newForger(t *testing.T, f frozen) *forger {
	t.Helper()
	a, _ := pair(t)
	g := &forger{dir: filepath.Join(a.Dir, "home", f.id)}
	t.Cleanup(func() {
		if err := os.RemoveAll(g.dir); err != nil {
			t.Error(err)
		}
	})
	must(t, a.Cryo(t.Context(), "push", f.ref, "oci:"+g.dir))
	if err := json.Unmarshal(g.blob(t, f.digest), &g.manifest); err != nil {
		t.Fatal(err)
	}
	g.config = g.blob(t, g.manifest.Config.Digest)
	return g
}

func (g *forger) path(d digest.Digest) string {
	return filepath.Join(g.dir, "blobs", d.Algorithm().String(), d.Encoded())
}

func (g *forger) blob(t *testing.T, d digest.Digest) []byte {
	t.Helper()
	content, err := os.ReadFile(g.path(d))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// add stores a value as JSON.
func (g *forger) add(t *testing.T, mediaType string, value any) ocispec.Descriptor {
	t.Helper()
	content, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
	if err := os.WriteFile(g.path(d.Digest), content, 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// forge changes config and runtime specification, and brings the result into a host's store as ref, where it is until
// the test ends.
func (g *forger) forge(t *testing.T, h *lab.Host, ref string, change func(*image.Config, *specs.Spec)) {
	t.Helper()
	var config image.Config
	var spec specs.Spec
	if err := json.Unmarshal(g.config, &config); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(config.Spec, &spec); err != nil {
		t.Fatal(err)
	}
	change(&config, &spec)
	var err error
	if config.Spec, err = json.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	m := g.manifest
	m.Config = g.add(t, m.Config.MediaType, config)
	d := g.add(t, m.MediaType, m)
	d.Annotations = map[string]string{ocispec.AnnotationRefName: ref}
	index, err := json.Marshal(ocispec.Index{Versioned: imagespecs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{d}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "index.json"), index, 0o600); err != nil {
		t.Fatal(err)
	}
	away(t, ref)
	must(t, h.Cryo(t.Context(), "pull", "oci:"+g.dir))
}
