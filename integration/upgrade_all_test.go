package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestUpgrade has a container run by a shim of one release, and a command of another ask for a snapshot of it: programs of this build, and those that "make previous" builds, which
// are taken for those of the release before. That is refused, and the container runs on. Started anew, it has a shim of this build. Directories of earlier builds may be put
// beside bin/previous, such as bin/previous-0.1.0: the test takes them as well.
func TestUpgrade(t *testing.T) {
	now := filepath.Dir(shared.lab.Tool("containerd-shim-cryo-v1"))
	others, err := filepath.Glob(filepath.Join(now, "previous*"))
	if err != nil || len(others) == 0 {
		t.Fatalf("no programs of the version before (%v); run: make previous", err)
	}
	for _, before := range others {
		t.Run(filepath.Base(before), func(t *testing.T) {
			path := t.TempDir() // what is installed
			install := func(programs string) {
				t.Helper()
				for _, name := range []string{"cryo", "containerd-shim-cryo-v1"} {
					link := filepath.Join(path, name)
					if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
						t.Fatal(err)
					}
					if err := os.Symlink(filepath.Join(programs, name), link); err != nil {
						t.Fatal(err)
					}
				}
			}
			install(before)
			h := newHost(t, name(t), lab.HostOptions{Path: []string{path}})
			for _, test := range []struct{ name, shim, command string }{{"newer command", before, now}, {"newer shim", now, before}} {
				t.Run(test.name, func(t *testing.T) {
					id := name(t)
					install(test.shim)
					start(t, h, id, nil, "workload", "count", "--memory", "4")
					first := await(t, h, id)
					install(test.command)
					ref := "upgrade/" + id + ":1"
					if r := h.Cryo(t.Context(), "checkpoint", id, ref); r.Code == 0 {
						t.Error("it is taken, by programs that do not know each other")
					} else if test.command == now {
						refusal(t, r, codePrecondition, "is of a release before this cryo")
					}
					if again := await(t, h, id); again.Count < first.Count {
						t.Errorf("it counts from %d, and was at %d", again.Count, first.Count)
					}
					remove(t.Context(), h, id)
					install(now)
					start(t, h, id, nil, "workload", "count", "--memory", "4")
					await(t, h, id)
					must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
					remove(t.Context(), h, id)
					must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
					await(t, h, id)
					remove(t.Context(), h, id)
					must(t, h.Cryo(t.Context(), "rm", ref))
				})
			}
		})
	}
}
