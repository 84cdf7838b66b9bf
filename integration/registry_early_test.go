package integration

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// checkpointed is what "cryo checkpoint --json" says, as far as tests look at it.
type checkpointed struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	Pushed bool          `json:"pushed"`
	Push   transferred   `json:"push"`
}

// transferred is what "cryo push --json" says of what was moved.
type transferred struct {
	Moved   int64 `json:"bytesMoved"`
	There   int64 `json:"bytesThere"`
	Retries int64 `json:"retries"`
}

// said reads the output of a command that has succeeded.
func said[T any](t *testing.T, r lab.Result) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(must(t, r).Stdout), &v); err != nil {
		t.Fatalf("%v:\n%s", err, r.Stdout)
	}
	return v
}

// named tells whether a registry has a manifest of a name.
func named(t *testing.T, r *lab.Registry, ref string) bool {
	t.Helper()
	answer := get(t, r, ref)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusNotFound {
		t.Fatalf("look for %s: %s", ref, answer.Status)
	}
	return answer.StatusCode == http.StatusOK
}

// TestRegistryEarly pushes a snapshot while it is taken: what arrives is what a push afterwards sends, once.
func TestRegistryEarly(t *testing.T) {
	a, b := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count", "--memory", "48")
	l := newLine(t, shared.registry)
	ref := l.Address + "/early/" + id + ":1"
	away(t, ref)
	taken := said[checkpointed](t, a.Cryo(t.Context(), "--json", "checkpoint", id, ref, "--leave-running", "--push", "--plain-http", "--segment-size", "4MiB"))
	counts(t, a, id)
	size := namedSize(t, ref)
	if !taken.Pushed || taken.Push.Moved+taken.Push.There != size || taken.Push.Retries != 0 {
		t.Errorf("pushed %+v; the blobs have %d bytes", taken, size)
	}
	const overhead = 256 << 10 // requests, headers, the manifest
	if sent := l.Sent.Load(); sent < taken.Push.Moved || sent > taken.Push.Moved+overhead {
		t.Errorf("%d bytes were sent, of which %d of blobs", sent, taken.Push.Moved)
	}
	later := newRegistry(t, "later", lab.RegistryOptions{})
	to := later.Reference("later/" + id + ":1")
	must(t, a.Cryo(t.Context(), "push", ref, to, "--plain-http"))
	for _, from := range []string{to, ref} {
		away(t, from)
		if got := digest.FromBytes(manifestOf(t, from)); got != taken.Digest {
			t.Errorf("%s is %s, not %s", from, got, taken.Digest)
		}
	}
	again := said[transferred](t, a.Cryo(t.Context(), "--json", "push", ref, "--plain-http"))
	if again.Moved != 0 || again.There != size {
		t.Errorf("pushed again: %+v", again)
	}
	got := said[transferred](t, b.Cryo(t.Context(), "--json", "pull", ref, "--plain-http"))
	if size := blobsSize(t, manifestOf(t, ref)); got.Moved != size {
		t.Errorf("pulled %+v of %d bytes", got, size)
	}
	must(t, b.Cryo(t.Context(), "verify", ref))
}

// namedSize is how many bytes different blobs have of a snapshot and of its image.
func namedSize(t *testing.T, ref string) int64 {
	t.Helper()
	var index ocispec.Index
	if err := json.Unmarshal(fetched(t, ref), &index); err != nil || len(index.Manifests) != 2 {
		t.Fatalf("%s stands for %+v (%v)", ref, index, err)
	}
	var all [][]byte
	for _, d := range index.Manifests {
		all = append(all, fetched(t, ref[:strings.LastIndex(ref, ":")]+"@"+d.Digest.String()))
	}
	return blobsSize(t, all...)
}

// blobsSize is how many bytes different blobs of manifests have.
func blobsSize(t *testing.T, manifests ...[]byte) (size int64) {
	t.Helper()
	seen := map[digest.Digest]bool{}
	for _, content := range manifests {
		var m ocispec.Manifest
		if err := json.Unmarshal(content, &m); err != nil {
			t.Fatal(err)
		}
		for _, d := range append(m.Layers, m.Config) {
			if !seen[d.Digest] {
				seen[d.Digest] = true
				size += d.Size
			}
		}
	}
	return size
}

// manifestOf fetches a manifest from whatever registry is named; of a snapshot with an image, the snapshot's.
func manifestOf(t *testing.T, ref string) []byte {
	t.Helper()
	content := fetched(t, ref)
	var index ocispec.Index
	if err := json.Unmarshal(content, &index); err != nil {
		t.Fatal(err)
	}
	for _, d := range index.Manifests {
		if image.IsEntry(d) {
			return fetched(t, ref[:strings.LastIndex(ref, ":")]+"@"+d.Digest.String())
		}
	}
	return content
}

// fetched is what a name or digest stands for in whatever registry is named.
func fetched(t *testing.T, ref string) []byte {
	t.Helper()
	response := get(t, &lab.Registry{Address: ref[:strings.Index(ref, "/")]}, ref)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("get manifest of %s: %s %v: %s", ref, response.Status, err, content)
	}
	return content
}

// get asks a registry for what a name or digest stands for.
func get(t *testing.T, r *lab.Registry, ref string) *http.Response {
	t.Helper()
	_, rest, _ := strings.Cut(ref, "/")
	repository, reference, ok := strings.Cut(rest, "@")
	if !ok {
		repository, reference, _ = strings.Cut(rest, ":")
	}
	response, err := r.Get(t.Context(), "/v2/"+repository+"/manifests/"+reference, ocispec.MediaTypeImageManifest+", "+ocispec.MediaTypeImageIndex)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// meanwhile runs cryo and does something until it ends by itself.
func meanwhile(t *testing.T, h *lab.Host, args []string, do func(interrupt func())) lab.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := h.Command(ctx, "cryo", args...)
	ended := make(chan lab.Result, 1)
	go func() { ended <- lab.Finish(c) }()
	do(func() {
		if err := c.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
	})
	return <-ended
}

func dies(t *testing.T, words string, flags []string) {
	a, _ := pair(t)
	id := name(t)
	r := newRegistry(t, "dying"+id[len(id)-6:], lab.RegistryOptions{})
	l := newLine(t, r)
	ref := l.Address + "/early/" + id + ":1"
	start(t, a, id, nil, "workload", "count", "--memory", "48")
	away(t, ref)
	l.Pause.Store(int64(3 * time.Millisecond))
	// One at a time, so that some are there when it dies.
	args := append([]string{"checkpoint", id, ref, "--push", "--plain-http", "--segment-size", "4MiB", "--concurrency", "1"}, flags...)
	ended := meanwhile(t, a, args, func(func()) {
		eventually(t, "segments are on their way", time.Minute, func() bool { return l.Sent.Load() > 12<<20 })
		if err := r.Stop(); err != nil {
			t.Fatal(err)
		}
	})
	if ended.Code != codeUnavailable || !strings.Contains(ended.Stderr, "cryo: push "+ref) {
		t.Errorf("exit code %d:\n%s", ended.Code, ended.Stderr)
	}
	digest := inspect(t, a, ref).Digest.String()
	hint := id + words + "the snapshot is safe as " + ref + " (" + digest + "); push it with cryo push " + ref
	if !strings.Contains(ended.Stderr, hint) {
		t.Errorf("it does not say what there is and how to go on:\n%s", ended.Stderr)
	}
	if slices.Contains(flags, "--json") {
		var taken struct {
			checkpointed
			Error reported
		}
		if err := json.Unmarshal([]byte(ended.Stdout), &taken); err != nil {
			t.Fatalf("%v:\n%s", err, ended.Stdout)
		}
		e := taken.Error
		if taken.Pushed || e.Kind != "unavailable" || e.ExitCode != codeUnavailable || e.Container != id || e.Left.Running || e.Left.Snapshot != digest || !strings.Contains(e.Hint, hint) {
			t.Errorf("the document:\n%s", ended.Stdout)
		}
	} else {
		if !strings.HasPrefix(ended.Stdout, digest) {
			t.Errorf("it does not say what was taken:\n%s", ended.Stdout)
		}
		counts(t, a, id)
	}
	must(t, a.Cryo(t.Context(), "verify", ref))
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if named(t, r, ref) {
		t.Error("the snapshot has a name in the registry")
	}
	l.Pause.Store(0)
	second := said[transferred](t, a.Cryo(t.Context(), "--json", "push", ref, "--plain-http"))
	if second.There < 4<<20 || second.Moved+second.There != namedSize(t, ref) {
		t.Errorf("the second push: %+v", second)
	}
}

// TestRegistryEarlyInterrupted ends a checkpoint that pushes with Ctrl-C, while it sends.
func TestRegistryEarlyInterrupted(t *testing.T) {
	a, _ := pair(t)
	l := newLine(t, shared.registry)
	id := name(t)
	ref := l.Address + "/early/" + id + ":1"
	start(t, a, id, nil, "workload", "count", "--memory", "48")
	away(t, ref)
	l.Pause.Store(int64(3 * time.Millisecond))
	args := []string{"checkpoint", id, ref, "--leave-running", "--push", "--plain-http", "--segment-size", "4MiB"}
	r := meanwhile(t, a, args, func(interrupt func()) {
		eventually(t, "segments are on their way", time.Minute, func() bool { return l.Sent.Load() > 6<<20 })
		interrupt()
	})
	if r.Code != codeInterrupted {
		t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
	}
	l.Pause.Store(0)
	counts(t, a, id)
	if named(t, shared.registry, ref) {
		t.Error("the snapshot has a name in the registry")
	}
	switch verified := a.Cryo(t.Context(), "verify", "--pull", "never", ref).Code; verified {
	case 0:
		must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	case codeNotFound: // it was not taken yet
		must(t, a.Cryo(t.Context(), args...))
	default:
		t.Errorf("verify: exit code %d", verified)
	}
	if !named(t, shared.registry, ref) {
		t.Error("the snapshot has no name in the registry")
	}
}

// TestRegistryEarlyFails has a checkpoint that pushes fail, as there is no room: the registry has no snapshot.
func TestRegistryEarlyFails(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := shared.registry.Reference("early/" + id + ":1")
	start(t, a, id, nil, "workload", "count", "--memory", "64")
	inside, outside := small(t, a, 40)
	refused(t, a, codeFull, "o space left", "checkpoint", id, ref, "--push", "--plain-http", "--segment-size", "4MiB", "--root", inside)
	counts(t, a, id)
	empty(t, outside)
	if named(t, shared.registry, ref) {
		t.Error("the snapshot has a name in the registry")
	}
}
