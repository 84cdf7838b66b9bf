package integration

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
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
	return newForgerOn(t, a, f)
}

// newForgerOn starts from a snapshot of another host's.
func newForgerOn(t *testing.T, a *lab.Host, f frozen) *forger {
	t.Helper()
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
	g.bring(t, h, ref, m)
}

// forgeImages changes CRIU's images instead, which change finds in a directory.
func (g *forger) forgeImages(t *testing.T, h *lab.Host, ref string, change func(dir string)) {
	t.Helper()
	dir := t.TempDir()
	tar := func(args string) {
		cmd := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", args)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args, err, out)
		}
	}
	i := slices.IndexFunc(g.manifest.Layers, func(d ocispec.Descriptor) bool { return d.MediaType == image.MediaTypeCRIU })
	tar("zstd -dc " + g.path(g.manifest.Layers[i].Digest) + " | tar -x")
	change(dir)
	forged := filepath.Join(g.dir, "forged")
	tar("tar -c --format=ustar --sort=name * > " + forged + ".tar; zstd -q --rm " + forged + ".tar -o " + forged + "; zstd -dc " + forged + " | wc -c > " + forged + ".size")
	text, err := os.ReadFile(forged + ".size")
	if err != nil {
		t.Fatal(err)
	}
	size, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(forged)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(forged); err != nil {
		t.Fatal(err)
	}
	g.bring(t, h, ref, g.layer(t, image.MediaTypeCRIU, content, size))
}

// bring stores a manifest, and pulls it into a host's store as ref.
func (g *forger) bring(t *testing.T, h *lab.Host, ref string, m ocispec.Manifest) {
	t.Helper()
	away(t, ref)
	must(t, h.Cryo(t.Context(), "pull", g.lay(t, ref, m))) // by its name, as it may be there
}

// lay stores a manifest as ref, and gives what pull knows it by.
func (g *forger) lay(t *testing.T, ref string, m ocispec.Manifest) string {
	t.Helper()
	d := g.add(t, m.MediaType, m)
	d.Annotations = map[string]string{ocispec.AnnotationRefName: ref}
	index, err := json.Marshal(ocispec.Index{Versioned: imagespecs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{d}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "index.json"), index, 0o600); err != nil {
		t.Fatal(err)
	}
	return "oci:" + g.dir + ":" + ref
}

// layer gives the manifest with another layer of a media type, which says that it unpacks to size bytes.
func (g *forger) layer(t *testing.T, mediaType string, content []byte, size int64) ocispec.Manifest {
	t.Helper()
	m := g.manifest
	m.Layers = slices.Clone(m.Layers)
	i := slices.IndexFunc(m.Layers, func(d ocispec.Descriptor) bool { return d.MediaType == mediaType })
	if i < 0 {
		t.Fatalf("the snapshot has no layer %s", mediaType)
	}
	m.Layers[i].Annotations = maps.Clone(m.Layers[i].Annotations)
	m.Layers[i].Annotations[image.AnnotationRawSize] = strconv.FormatInt(size, 10)
	if mediaType == image.MediaTypeRootFS {
		z, err := zstd.NewReader(bytes.NewReader(content), zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			t.Fatal(err)
		}
		raw := digest.SHA256.Digester()
		_, _ = io.Copy(raw.Hash(), io.LimitReader(z, min(size, 64<<20))) // what is longer is refused before
		z.Close()
		m.Layers[i].Annotations[image.AnnotationRawDigest] = raw.Digest().String()
	}
	m.Layers[i].Digest, m.Layers[i].Size = digest.FromBytes(content), int64(len(content))
	if err := os.WriteFile(g.path(m.Layers[i].Digest), content, 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

// pullBase brings the image that containers are of to a host, as its user would who restores what is not from its registry: flags of cryo
// for one registry are not for another that a snapshot names.
func pullBase(t *testing.T, h *lab.Host) {
	t.Helper()
	must(t, h.Ctr(t.Context(), "images", "pull", "--plain-http", shared.image))
}

// pullBases does it on both hosts, for what is restored by way of another registry, or another address of one.
func pullBases(t *testing.T) {
	t.Helper()
	a, b := pair(t)
	pullBase(t, a)
	pullBase(t, b)
}
