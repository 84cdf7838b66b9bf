package integration

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestArtifact or TestRegistry take the snapshot itself for what it is, an OCI artifact:
// what is shared between two of them, which ways they can go, and that what arrives still runs.

// snapshot is what "cryo inspect --json" says, as far as tests look at it.
type snapshot struct {
	Reference string               `json:"reference"`
	Digest    digest.Digest        `json:"digest"`
	Size      int64                `json:"size"`
	Layers    []ocispec.Descriptor `json:"layers"`
}

// segments are the layers with memory: digests and sizes.
func (s snapshot) segments() map[digest.Digest]int64 {
	found := map[digest.Digest]int64{}
	for _, l := range s.Layers {
		if strings.HasPrefix(l.Annotations[ocispec.AnnotationTitle], "segment-") {
			found[l.Digest] = l.Size
		}
	}
	return found
}

// inspect looks at a snapshot in a host's store.
func inspect(t *testing.T, h *lab.Host, ref string) (s snapshot) {
	t.Helper()
	output := must(t, h.Cryo(t.Context(), "inspect", ref, "--json")).Stdout
	if err := json.Unmarshal([]byte(output), &s); err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
	return s
}

// frozen is a snapshot in the store of host a, of a container that has ended there.
type frozen struct {
	id, ref string
	digest  digest.Digest
	before  lab.Answer // of the workload
}

// freeze starts a workload on host a and takes a snapshot of it, which goes with the test. The reference is of the
// shared registry; nothing is there yet.
func freeze(t *testing.T, workload []string, flags ...string) (f frozen) {
	t.Helper()
	return freezeImage(t, shared.image, nil, workload, flags...)
}

// freezeImage is freeze with an image that host a has, and with flags of ctr run; the reference is in the image's registry.
func freezeImage(t *testing.T, image string, run, workload []string, flags ...string) (f frozen) {
	t.Helper()
	a, _ := pair(t)
	f.id = name(t)
	address, _, _ := strings.Cut(image, "/")
	f.ref = address + "/artifact/" + f.id + ":1"
	startImage(t, a, image, f.id, run, append([]string{"workload"}, workload...)...)
	f.before = await(t, a, f.id)
	away(t, f.ref)
	must(t, a.Cryo(t.Context(), slices.Concat([]string{"checkpoint", f.id, f.ref}, flags)...))
	remove(t.Context(), a, f.id)
	f.digest = inspect(t, a, f.ref).Digest
	return f
}

// away removes a snapshot from both hosts when the test ends.
func away(t *testing.T, ref string) {
	t.Helper()
	t.Cleanup(func() {
		for _, h := range []*lab.Host{shared.a, shared.b} {
			h.Cryo(cleanupContext(t), "rm", ref)
		}
	})
}

// thaw restores a snapshot from anywhere on a host and sees that its container goes on, which it then removes.
func thaw(t *testing.T, h *lab.Host, f frozen, from string, flags ...string) {
	t.Helper()
	id := f.id + "-thawed"
	cleanup(t, h, id)
	must(t, h.Cryo(t.Context(), slices.Concat([]string{"restore", from, "--plain-http", "--wait", "--name", id}, flags)...))
	goneOn(t, f.before, await(t, h, id))
	remove(t.Context(), h, id)
}

// TestArtifactAnnotations: the manifest of a snapshot has checkpointctl's annotations, and the image beside it has none of them: other runtimes would take it for an archive of theirs.
func TestArtifactAnnotations(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count"})
	must(t, a.Cryo(t.Context(), "push", f.ref, "--plain-http"))
	var index ocispec.Index
	if err := json.Unmarshal(fetched(t, f.ref), &index); err != nil || len(index.Manifests) != 2 {
		t.Fatalf("%v: %+v", err, index)
	}
	for _, d := range index.Manifests {
		var m ocispec.Manifest
		if err := json.Unmarshal(fetched(t, f.ref[:strings.LastIndex(f.ref, ":")]+"@"+d.Digest.String()), &m); err != nil {
			t.Fatal(err)
		}
		got, snapshot := map[string]string{}, d.Digest == f.digest
		for _, of := range []map[string]string{m.Annotations, d.Annotations, index.Annotations} {
			for key, value := range of {
				if name, ok := strings.CutPrefix(key, "org.criu.checkpoint."); ok {
					got[name] = value
				}
			}
		}
		if !snapshot && len(got) > 0 {
			t.Errorf("the image has %v", got)
		}
		if snapshot && (got["engine.name"] != "containerd" || got["container.name"] != f.id || got["rootfsImageName"] != shared.image || !strings.HasPrefix(got["rootfsImageID"], "sha256:") ||
			got["criu.version"] == "" || got["host.arch"] == "" || got["host.kernel"] == "" || got["runtime.name"] != "runc" || !strings.HasPrefix(got["cgroup.version"], "v")) {
			t.Errorf("the snapshot has %v", got)
		}
	}
}
