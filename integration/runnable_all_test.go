package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestRunnableImageSigned signs the snapshot beside an image: it is the snapshot that a policy judges, also in a copy.
func TestRunnableImageSigned(t *testing.T) {
	a, b := pair(t)
	private, public := storetest.Key(t)
	f, _ := frozenChanging(t, "--sign-key", private)
	strict := fmt.Sprintf("[trust]\ndefault = 'signed'\nkeys = [%q]\n", public)
	copies := newRegistry(t, "signed-copies", lab.RegistryOptions{})
	to := copies.Reference("copies/" + f.id + ":1")
	away(t, to)
	must(t, a.Run(t.Context(), "oras", "cp", "--recursive", "--from-plain-http", "--to-plain-http", f.ref, to))
	for _, ref := range []string{f.ref, to} {
		must(t, configured(t, b, strict, "pull", ref, "--plain-http"))
		must(t, b.Cryo(t.Context(), "rm", ref))
	}
	other, _ := frozenChanging(t)
	refusal(t, configured(t, b, strict, "pull", other.ref, "--plain-http"), codeDenied, saysUnsigned)
}

// TestRunnableImageElsewhere pushes to a registry that has nothing of the base image: its layers come from containerd. Where containerd does not know the image, a registry
// that only the snapshot names is not asked if it is nearer than the snapshot's own.
func TestRunnableImageElsewhere(t *testing.T) {
	a, b := pair(t)
	for _, from := range []string{"containerd", "registry"} {
		t.Run(from, func(t *testing.T) {
			// A registry on loopback is spoken to without TLS, whatever the flags are for.
			bases := newRegistry(t, "bases-"+from, lab.RegistryOptions{Host: a})
			img, err := a.Seed(t.Context(), bases, lab.ImageName)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "rm", img) })
			id := name(t)
			ref := shared.registry.Reference("elsewhere/" + id + ":1")
			startImage(t, a, img, id, nil, changing...)
			f := frozen{id: id, ref: ref, before: await(t, a, id)}
			away(t, ref)
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--segment-size", "4MiB"))
			remove(t.Context(), a, id)
			args := []string{"--json", "push", ref, "--plain-http"}
			if from == "registry" {
				args = append([]string{"--address", "/nonexistent/containerd.sock"}, args...)
			}
			pushed := said[pushedImage](t, a.Cryo(t.Context(), args...))
			if from == "registry" { // which the snapshot alone names, nearer to this host than its own is, and without TLS: a stored password would go there
				if !strings.Contains(pushed.NoImage, "(rule internal-address)") {
					t.Errorf("it is asked for the base image: %+v", pushed)
				}
				return
			}
			if size := namedSize(t, ref); pushed.NoImage != "" || pushed.There != 0 || pushed.Moved != size {
				t.Errorf("of %d bytes: %+v", size, pushed)
			}
			startsCold(t, b, ref)
			pullBase(t, b)
			thaw(t, b, f, ref)
		})
	}
}

// TestRunnableImageDocker has a base image in Docker's format: the image on top has OCI's names for its layers, which containerd, skopeo and crane take.
func TestRunnableImageDocker(t *testing.T) {
	a, b := pair(t)
	base := shared.registry.Reference("docker/" + name(t) + ":1")
	must(t, a.Run(t.Context(), "skopeo", "copy", "--format", "v2s2", "--src-tls-verify=false", "--dest-tls-verify=false", "docker://"+shared.image, "docker://"+base))
	for _, h := range []*lab.Host{a, b} {
		must(t, h.Ctr(t.Context(), "images", "pull", "--plain-http", base))
		t.Cleanup(func() { h.Ctr(cleanupContext(t), "images", "rm", base) })
	}
	id := name(t)
	ref := shared.registry.Reference("runnable/" + id + ":1")
	startImage(t, a, base, id, nil, changing...)
	f := frozen{id: id, ref: ref, before: await(t, a, id)}
	away(t, ref)
	pushed := said[pushedImage](t, a.Cryo(t.Context(), "--json", "checkpoint", id, ref, "--push", "--plain-http"))
	remove(t.Context(), a, id)
	var m ocispec.Manifest
	if err := json.Unmarshal(fetched(t, byDigest(ref, pushed.Image)), &m); err != nil || len(m.Layers) < 2 {
		t.Fatalf("the image is %+v (%v): %+v", m, err, pushed)
	}
	for _, l := range m.Layers {
		if !strings.HasPrefix(l.MediaType, "application/vnd.oci.image.layer.v1.tar") {
			t.Errorf("a layer is %s", l.MediaType)
		}
	}
	startsCold(t, b, ref)
	copies := newRegistry(t, "docker-copies", lab.RegistryOptions{})
	for _, tool := range []string{"skopeo copy --all --src-tls-verify=false --dest-tls-verify=false docker://FROM docker://TO", "crane copy --insecure FROM TO"} {
		to := copies.Reference(strings.Fields(tool)[0] + "/copy:1")
		away(t, to)
		must(t, a.Run(t.Context(), strings.Fields(strings.NewReplacer("FROM", ref, "TO", to).Replace(tool))...))
		startsCold(t, b, to)
		thaw(t, b, f, to)
	}
}

// TestRunnableImageKilled kills pushes at all their stages: as soon as there is a name, all that it stands for is there.
func TestRunnableImageKilled(t *testing.T) {
	a, b := pair(t)
	f := freeze(t, []string{"count", "--memory", "8", "--fill", "mixed"}, "--segment-size", "1MiB")
	l := newLine(t, shared.registry)
	l.Pause.Store(int64(2 * time.Millisecond))
	whole, killed := 0, 0
	for n := 0; n < 40 && whole == 0; n++ {
		ref := l.Address + "/killed/" + f.id + ":1"
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+60*n)*time.Millisecond)
		r := lab.Finish(a.Command(ctx, "cryo", "push", f.ref, ref, "--plain-http", "--concurrency", "1")) // the end of ctx kills it
		cancel()
		if r.Code != 0 {
			killed++
		}
		if !named(t, shared.registry, ref) {
			if r.Code == 0 {
				t.Fatal("there is no name after a push that has succeeded")
			}
			continue
		}
		whole++
		l.Pause.Store(0)
		namedSize(t, ref)
		must(t, b.Cryo(t.Context(), "pull", ref, "--plain-http"))
		must(t, b.Cryo(t.Context(), "verify", ref))
		away(t, ref)
		startsWhole(t, b, ref)
	}
	t.Logf("killed %d times", killed)
	if whole == 0 || killed == 0 {
		t.Errorf("killed %d times, and there %d times", killed, whole)
	}
}
