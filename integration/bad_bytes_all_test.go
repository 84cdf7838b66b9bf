package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// part is one blob of a snapshot.
type part struct {
	name string // manifest, config, or the start of a layer's title
	desc ocispec.Descriptor
}

// parts are a snapshot's blobs, one of each kind of layer.
func parts(t *testing.T, h *lab.Host, ref string) (all []part) {
	t.Helper()
	var tag struct{ Digest digest.Digest }
	out := must(t, h.Cryo(t.Context(), "push", ref, "--plain-http", "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &tag); err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	manifest := ocispec.Descriptor{Digest: tag.Digest}
	content, err := os.ReadFile(storedAt(h, manifest))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &m); err != nil {
		t.Fatal(err)
	}
	all = []part{{"manifest", manifest}, {"config", m.Config}}
	seen := map[string]bool{}
	for _, layer := range m.Layers {
		title := layer.Annotations[ocispec.AnnotationTitle]
		kind := title[:min(len(title), 5)]
		if !seen[kind] {
			all = append(all, part{title, layer})
		}
		seen[kind] = true
	}
	if len(all) != 6 {
		t.Fatalf("%s has %d kinds of blobs, want manifest, config, index, criu, rootfs and segment: %v", ref, len(all), all)
	}
	return all
}

// storedAt is a blob's file in a host's store.
func storedAt(h *lab.Host, d ocispec.Descriptor) string {
	return filepath.Join(h.CryoRoot(), "store/blobs/sha256", d.Digest.Encoded())
}

// servedAt is a blob's file in the shared registry.
func servedAt(d ocispec.Descriptor) string {
	hex := d.Digest.Encoded()
	return filepath.Join(shared.registry.Dir, "data/docker/registry/v2/blobs/sha256", hex[:2], hex, "data")
}

// damages are what can have happened to a file; each gets the whole content.
var damages = []struct {
	name string
	do   func(content []byte) []byte
}{
	{"first byte", func(c []byte) []byte { return flip(c, 0) }},
	{"a quarter in", func(c []byte) []byte { return flip(c, len(c)/4) }},
	{"middle", func(c []byte) []byte { return flip(c, len(c)/2) }},
	{"last byte", func(c []byte) []byte { return flip(c, len(c)-1) }},
	{"one byte less", func(c []byte) []byte { return c[:len(c)-1] }},
	{"one byte more", func(c []byte) []byte { return append(c, 0) }},
	{"half", func(c []byte) []byte { return c[:len(c)/2] }},
	{"empty", func([]byte) []byte { return nil }},
}

func flip(c []byte, at int) []byte {
	c[at] ^= 0x10
	return c
}

// otherDigest makes the first digest in a manifest another one.
func otherDigest(c []byte) []byte {
	at := bytes.Index(c, []byte("sha256:")) + len("sha256:")
	if c[at] == 'a' {
		c[at] = 'b'
	} else {
		c[at] = 'a'
	}
	return c
}

// damaged damages a file for the time of do.
func damaged(t *testing.T, path string, damage func([]byte) []byte, do func()) {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(content []byte) {
		// A file of its own: the store's may be the same one under another name.
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	write(damage(append([]byte{}, whole...)))
	defer write(whole)
	do()
}

// TestBadBytes damages each kind of blob of a snapshot in the store: it is neither found good nor restored, and can be
// had anew from the registry.
func TestBadBytes(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "8")
	id := name(t)
	cleanup(t, a, id)
	for _, p := range parts(t, a, ref) {
		for _, d := range damages {
			t.Run(fmt.Sprintf("%s, %s", p.name, d.name), func(t *testing.T) {
				damaged(t, storedAt(a, p.desc), d.do, func() {
					refused(t, a, codeDamaged, "", "verify", ref)
					// Damaged memory would be found while the container runs: see TestLazy.
					refused(t, a, codeDamaged, "", "restore", ref, "--name", id, "--eager")
				})
			})
		}
		t.Run(p.name+" mended", func(t *testing.T) {
			damaged(t, storedAt(a, p.desc), damages[2].do, func() {
				must(t, a.Cryo(t.Context(), "rm", ref))
				must(t, a.Cryo(t.Context(), "pull", ref, "--plain-http"))
				must(t, a.Cryo(t.Context(), "verify", ref))
			})
		})
	}
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id))
	counts(t, a, id)
}

// TestBadServed damages each kind of blob of a snapshot in the registry.
func TestBadServed(t *testing.T) {
	a, b := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "8")
	id := name(t)
	cleanup(t, b, id)
	// A store that has nothing of it, each time: what is good is kept for the next attempt.
	root := filepath.Join(b.Dir, "bad-root")
	forgetRoot := func() {
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"restore", ref, "--plain-http", "--wait", "--name", id, "--root", root}
	defer forgetRoot()
	try := func(t *testing.T, p part, damage func([]byte) []byte, code int) {
		forgetRoot()
		damaged(t, servedAt(p.desc), damage, func() {
			before := trace(t, b)
			refusal(t, b.Cryo(t.Context(), args...), code, "")
			remove(t.Context(), b, id) // what had run by then was ended, and is left for its user to see, as the base image is
			wantTrace(t, b, before, "image ", "snapshot sha256:")
		})
		for _, line := range traceStore(t, root) {
			if !strings.HasPrefix(line, "blob ") && !strings.HasPrefix(line, "store /partial/") {
				t.Error("left in the store:", line)
			}
		}
	}
	all := parts(t, a, ref)
	t.Run("manifest, another digest", func(t *testing.T) { try(t, all[0], otherDigest, codeDamaged) })
	// The registry itself reads manifests, and answers with an internal error.
	t.Run("manifest, no JSON", func(t *testing.T) { try(t, all[0], func([]byte) []byte { return nil }, codeUnavailable) })
	for _, p := range all[1:] {
		for _, d := range damages {
			t.Run(fmt.Sprintf("%s, %s", p.name, d.name), func(t *testing.T) { try(t, p, d.do, codeDamaged) })
		}
	}
	must(t, b.Cryo(t.Context(), args...))
	counts(t, b, id)
}
