package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/lab"
)

// pushedImage is what "cryo --json checkpoint --push" and "cryo --json push" say of the image.
type pushedImage struct {
	Digest  digest.Digest `json:"digest"`
	Index   digest.Digest `json:"index"`
	Image   digest.Digest `json:"image"`
	NoImage string        `json:"noImage"`
	transferred
	Push transferred `json:"push"`
}

// changing is a command that changes files when it runs for the first time, and tells whether they were there before.
var changing = []string{"sh", "-c", `if [ -e /made ]; then echo cold >/again; else echo warm >/made; rm /bin/wget; mkdir /new; fi; exec workload count --memory 16 --fill mixed`}

// at gives the parts of an index: the image and the snapshot.
func at(t *testing.T, ref string) (img, snapshot ocispec.Descriptor) {
	t.Helper()
	var index ocispec.Index
	if err := json.Unmarshal(fetched(t, ref), &index); err != nil || len(index.Manifests) != 2 {
		t.Fatalf("%s stands for %+v (%v)", ref, index, err)
	}
	return index.Manifests[0], index.Manifests[1]
}

// byDigest is a reference to something else of the same repository.
func byDigest(ref string, d digest.Digest) string {
	return ref[:strings.LastIndex(ref, ":")] + "@" + d.String()
}

// startsCold runs the image on a host by the stock runtime: it finds the changed files and has fetched no memory. It removes it all again.
func startsCold(t *testing.T, h *lab.Host, ref string, flags ...string) {
	t.Helper()
	id := name(t) + "-cold"
	cleanup(t, h, id)
	must(t, h.Ctr(t.Context(), slices.Concat([]string{"images", "pull", "--plain-http"}, flags, []string{ref})...))
	t.Cleanup(func() { h.Ctr(cleanupContext(t), "images", "rm", "--sync", ref) })
	_, snapshot := at(t, ref)
	var m ocispec.Manifest
	if err := json.Unmarshal(fetched(t, byDigest(ref, snapshot.Digest)), &m); err != nil {
		t.Fatal(err)
	}
	held := must(t, h.Ctr(t.Context(), "content", "ls", "--quiet")).Stdout
	for _, d := range append(m.Layers, m.Config) { // containerd's transfer service fetches the manifests of all platforms
		if d.MediaType != image.MediaTypeRootFS && strings.Contains(held, d.Digest.String()) {
			t.Errorf("containerd has fetched %s of the snapshot, %s", d.MediaType, d.Digest)
		}
	}
	must(t, h.Ctr(t.Context(), "run", "--detach", "--runtime", runcRuntime, "--null-io", ref, id))
	await(t, h, id)
	script := `set -e; cat /made /again; test -d /new; ! test -e /bin/wget`
	if got := must(t, h.Ctr(t.Context(), "task", "exec", "--exec-id", "look", id, "sh", "-c", script)).Stdout; got != "warm\ncold\n" {
		t.Errorf("the container that was started cold has %q", got)
	}
	remove(t.Context(), h, id)
	must(t, h.Ctr(t.Context(), "images", "rm", "--sync", ref))
}

// frozenChanging is a container that has changed files, of which a snapshot was pushed with an image.
func frozenChanging(t *testing.T, flags ...string) (f frozen, pushed pushedImage) {
	t.Helper()
	a, _ := pair(t)
	f.id = name(t)
	f.ref = shared.registry.Reference("runnable/" + f.id + ":1")
	startImage(t, a, shared.image, f.id, nil, changing...)
	f.before = await(t, a, f.id)
	away(t, f.ref)
	pushed = said[pushedImage](t, a.Cryo(t.Context(), slices.Concat([]string{"--json", "checkpoint", f.id, f.ref, "--push", "--plain-http", "--segment-size", "4MiB"}, flags)...))
	remove(t.Context(), a, f.id)
	f.digest = pushed.Digest
	return f, pushed
}

// TestRunnableImage takes a snapshot whose name is that of an ordinary image too: the stock runtime starts it cold, cryo restores it.
func TestRunnableImage(t *testing.T) {
	a, b := pair(t)
	f, pushed := frozenChanging(t)
	img, snapshot := at(t, f.ref)
	if pushed.NoImage != "" || digest.FromBytes(fetched(t, f.ref)) != pushed.Index || img.Digest != pushed.Image || snapshot.Digest != pushed.Digest {
		t.Fatalf("it says %+v, and the index lists %s and %s", pushed, img.Digest, snapshot.Digest)
	}
	if p := snapshot.Platform; p.OS != "unknown" || p.Architecture != "unknown" || img.Platform.OS != "linux" {
		t.Errorf("the platforms are %+v and %+v", img.Platform, p)
	}
	var m, base ocispec.Manifest
	var config ocispec.Image
	for ref, v := range map[string]any{byDigest(f.ref, img.Digest): &m, shared.image: &base} {
		if err := json.Unmarshal(fetched(t, ref), v); err != nil {
			t.Fatal(err)
		}
	}
	if err := json.Unmarshal(blob(t, f.ref, m.Config.Digest), &config); err != nil {
		t.Fatal(err)
	}
	if got := config.Config.Labels[image.RunnableLabel]; got != f.digest.String() || !slices.Equal(config.Config.Cmd, changing) {
		t.Errorf("the image's configuration is %+v", config.Config)
	}
	// Layers of the base image are mounted from its repository, not sent.
	var mounted int64
	for _, l := range base.Layers {
		mounted += l.Size
	}
	if size := namedSize(t, f.ref); pushed.Push.Moved+pushed.Push.There != size || pushed.Push.There != mounted || mounted == 0 {
		t.Errorf("of %d bytes %+v were moved; the base image's layers have %d", size, pushed.Push, mounted)
	}

	t.Run("cold", func(t *testing.T) { startsCold(t, b, f.ref) })
	t.Run("cold, pulled by the client", func(t *testing.T) { startsCold(t, b, f.ref, "--local") })
	t.Run("warm", func(t *testing.T) {
		if text := must(t, b.Cryo(t.Context(), "inspect", f.ref, "--plain-http")).Stdout; !strings.Contains(text, pushed.Image.String()+", image for linux/") {
			t.Errorf("inspect does not show the image:\n%s", text)
		}
		shown := said[struct {
			Index struct {
				Digest  digest.Digest
				Entries []ocispec.Descriptor
			}
		}](t, b.Cryo(t.Context(), "inspect", f.ref, "--plain-http", "--json"))
		entries := shown.Index.Entries
		if shown.Index.Digest != pushed.Index || len(entries) != 2 || entries[0].Digest != pushed.Image || entries[0].Platform == nil || entries[1].Digest != f.digest {
			t.Errorf("inspect shows %+v", shown)
		}
		thaw(t, b, f, f.ref)
		if got := inspect(t, b, f.ref).Digest; got != f.digest {
			t.Errorf("the store has %s by this name", got)
		}
		must(t, b.Cryo(t.Context(), "verify", f.ref))
		must(t, b.Cryo(t.Context(), "rm", f.ref))
	})
	t.Run("by the digest of the index", func(t *testing.T) {
		thaw(t, b, f, byDigest(f.ref, pushed.Index))
		if got := inspect(t, b, byDigest(f.ref, f.digest)).Digest; got != f.digest {
			t.Errorf("the store has %s", got)
		}
		must(t, b.Cryo(t.Context(), "rm", byDigest(f.ref, f.digest)))
	})
	t.Run("again", func(t *testing.T) {
		again := said[pushedImage](t, a.Cryo(t.Context(), "--json", "push", f.ref, "--plain-http"))
		if again.Moved != 0 || again.Index != pushed.Index {
			t.Errorf("%+v became %+v", pushed, again)
		}
	})
	t.Run("a snapshot alone", func(t *testing.T) {
		alone := f.ref + "-alone"
		if said := said[pushedImage](t, a.Cryo(t.Context(), "--json", "push", f.ref, alone, "--plain-http", "--snapshot-only")); said.Index != "" || said.NoImage != "" {
			t.Errorf("it says %+v", said)
		}
		if got := digest.FromBytes(fetched(t, alone)); got != f.digest {
			t.Errorf("the name stands for %s", got)
		}
	})
}

// blob fetches a blob of the repository of a reference.
func blob(t *testing.T, ref string, d digest.Digest) []byte {
	t.Helper()
	host, rest, _ := strings.Cut(ref, "/")
	repository, _, _ := strings.Cut(rest, ":")
	answer, err := (&lab.Registry{Address: host}).Get(t.Context(), "/v2/"+repository+"/blobs/"+d.String(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("get %s of %s: %s %v", d, ref, answer.Status, err)
	}
	return content
}

// TestRunnableImageNowhere pushes where the base image is not to be had: the snapshot goes alone, and that is said.
func TestRunnableImageNowhere(t *testing.T) {
	a, b := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	before := await(t, a, id)
	ref := shared.registry.Reference("nowhere/" + id + ":1")
	away(t, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	taken := inspect(t, a, ref).Digest
	nowhere := []string{"--address", "/nonexistent/containerd.sock", "push", ref, "--plain-http"}
	r := must(t, a.Cryo(t.Context(), append([]string{"--json"}, nowhere...)...))
	said1 := said[pushedImage](t, r)
	if said1.NoImage == "" || said1.Index != "" || said1.Digest != taken || !strings.Contains(r.Stderr, "warning: "+ref+" stands for the snapshot alone") {
		t.Errorf("it says %+v\n%s", said1, r.Stderr)
	}
	if got := digest.FromBytes(fetched(t, ref)); got != taken {
		t.Errorf("the name stands for %s", got)
	}
	pullBase(t, b)
	thaw(t, b, frozen{id: id, before: before}, ref)
	// Who has the base image makes the image, and it stays when others push again.
	pushed := said[pushedImage](t, a.Cryo(t.Context(), "--json", "push", ref, "--plain-http"))
	if pushed.Index == "" {
		t.Errorf("it says %+v", pushed)
	}
	if r := must(t, a.Cryo(t.Context(), nowhere...)); r.Stderr != "" {
		t.Errorf("it says\n%s", r.Stderr)
	}
	if got := digest.FromBytes(fetched(t, ref)); got != pushed.Index {
		t.Errorf("the name stands for %s", got)
	}
}

// startsWhole has containerd pull and unpack an image.
func startsWhole(t *testing.T, h *lab.Host, ref string) {
	t.Helper()
	must(t, h.Ctr(t.Context(), "images", "pull", "--plain-http", ref))
	must(t, h.Ctr(t.Context(), "images", "rm", "--sync", ref))
}
