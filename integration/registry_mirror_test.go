package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// mirrored has cryo on a host ask the registry at an address before the lab's registry, as containerd's hosts.toml says.
func mirrored(t *testing.T, h *lab.Host, address string) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, shared.registry.Address)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	content := fmt.Sprintf("[host.'http://%s']\ncapabilities = ['pull', 'resolve']\n", address)
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Configure(fmt.Sprintf("[registry]\nhosts = %q\n", root)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Configure(""); err != nil {
			t.Error(err)
		}
	})
}

// request is one that a registry has answered.
type request struct {
	method, what string // what is below the repository: manifests/ or blobs/, and a tag or digest
	status       int
	bytes        int64 // of the answer's body that were sent
}

// requests lists what a registry was asked for of a repository, but for lists of signatures, which are asked of the registry alone.
func requests(t *testing.T, r *lab.Registry, repository string) (all []request) {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(r.Dir, "registry.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`"(GET|HEAD) /v2/`+repository+`/(\S+) HTTP/[0-9.]+" (\d+) (\d+) `).FindAllStringSubmatch(string(log), -1) {
		if what := found[2]; !strings.HasPrefix(what, "referrers/") && !strings.HasPrefix(what, "manifests/sha256-") {
			status, _ := strconv.Atoi(found[3]) // the expression has digits alone
			bytes, _ := strconv.ParseInt(found[4], 10, 64)
			all = append(all, request{found[1], what, status, bytes})
		}
	}
	return all
}

// TestRegistryMirror restores by the name of a registry which is asked for nothing, since its mirror has all, and whose mirror dies while memory comes.
func TestRegistryMirror(t *testing.T) {
	_, b := pair(t)
	f := freeze(t, []string{"count", "--memory", "16"}, "--push", "--plain-http", "--segment-size", "4MiB")
	mirror := newRegistry(t, "mirror", lab.RegistryOptions{})
	path := "artifact/" + f.id + ":1"
	must(t, shared.a.Cryo(t.Context(), "push", f.ref, mirror.Reference(path), "--plain-http"))
	forget(t, shared.a, mirror.Reference(path))

	t.Run("has all", func(t *testing.T) {
		mirrored(t, b, mirror.Address)
		before := len(requests(t, shared.registry, "artifact/"+f.id))
		thaw(t, b, f, f.ref)
		if more := requests(t, shared.registry, "artifact/"+f.id)[before:]; len(more) > 0 {
			t.Errorf("the registry was asked for %v", more)
		}
		if len(requests(t, mirror, "artifact/"+f.id)) == 0 {
			t.Error("the mirror got none")
		}
		must(t, b.Cryo(t.Context(), "rm", f.ref))
	})
	t.Run("dies", func(t *testing.T) {
		g := newGate(t, mirror, path)
		goesOnWithout(t, b, g, f, func() {
			g.die()
			if err := mirror.Stop(); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// goesOnWithout restores a container by a mirror that sends only a part of its memory. Then fail is called, and what is missing comes from the registry.
func goesOnWithout(t *testing.T, h *lab.Host, mirror *gate, f frozen, fail func()) {
	t.Helper()
	mirrored(t, h, mirror.address)
	id := f.id + "-without"
	cleanup(t, h, id)
	c := begun(t, h, "restore", f.ref, "--name", id, "--plain-http", "--wait")
	c.hello(t, h, id)
	eventually(t, "the pull", 30*time.Second, func() bool { return mirror.held.Load() > 0 })
	c.under(t)
	fail()
	must(t, <-c.ended)
	goneOn(t, f.before, await(t, h, id))
	must(t, h.Cryo(t.Context(), "verify", "--pull", "never", f.ref))
	remove(t.Context(), h, id)
}
