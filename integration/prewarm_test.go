package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// warmed is what cryo says of a prewarmed snapshot.
type warmed struct {
	Reference    string
	Digest       digest.Digest
	Memory, Disk int64
	Stale        bool
	Already      bool
	Removed      []warmed
}

// prewarm prewarms a snapshot.
func prewarm(t *testing.T, h *lab.Host, ref string, flags ...string) (w warmed) {
	t.Helper()
	out := must(t, h.Cryo(t.Context(), append([]string{"prewarm", ref, "--json"}, flags...)...)).Stdout
	if err := json.Unmarshal([]byte(out), &w); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return w
}

// warm lists what is prewarmed on a host.
func warm(t *testing.T, h *lab.Host) (all []warmed) {
	t.Helper()
	out := must(t, h.Cryo(t.Context(), "prewarm", "ls", "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return all
}

// wantWarm wants these snapshots to be prewarmed, in the order of their last use, and nothing else in memory.
func wantWarm(t *testing.T, h *lab.Host, refs ...string) {
	t.Helper()
	all := warm(t, h)
	var got []string
	for _, w := range all {
		got = append(got, w.Reference)
	}
	if fmt.Sprint(got) != fmt.Sprint(refs) {
		t.Errorf("%s are prewarmed, want %s", got, refs)
	}
	// The test does not see the host's mounts, but its processes do.
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root%s", h.Pid(), filepath.Join(h.CryoRoot(), "warm")))
	if err != nil && !os.IsNotExist(err) || len(entries) != len(refs) {
		t.Errorf("in memory are %v, %v", entries, err)
	}
}

// cold gives back all memory.
func cold(t *testing.T, h *lab.Host) {
	t.Helper()
	t.Cleanup(func() { h.Cryo(cleanupContext(t), "prewarm", "rm", "--all") })
}

// restoreWarm restores a snapshot and wants it to have been prewarmed, or not.
func restoreWarm(t *testing.T, h *lab.Host, ref string, want bool, flags ...string) (id string) {
	t.Helper()
	id = name(t)
	cleanup(t, h, id)
	var r struct{ Prewarmed bool }
	res := h.Cryo(t.Context(), append([]string{"restore", ref, "--name", id, "--json"}, flags...)...)
	if err := res.Err(); err != nil {
		t.Error(err)
	} else if err := json.Unmarshal([]byte(res.Stdout), &r); err != nil || r.Prewarmed != want {
		t.Errorf("%v, want prewarmed %v: %s", err, want, res.Stdout)
	}
	return id
}

// withoutSegments has the store lack a snapshot's memory while do runs.
func withoutSegments(t *testing.T, h *lab.Host, ref string, do func()) {
	t.Helper()
	for dg := range inspect(t, h, ref).segments() {
		path := storedAt(h, ocispec.Descriptor{Digest: dg})
		if err := os.Rename(path, path+"-away"); err != nil {
			t.Fatal(err)
		}
		defer os.Rename(path+"-away", path)
	}
	do()
}

// TestPrewarm restores what is in memory, with neither a registry nor the store's segments.
func TestPrewarm(t *testing.T) {
	a, _ := pair(t)
	h := newHost(t, "warm", lab.HostOptions{})
	r := newRegistry(t, "warm", lab.RegistryOptions{})
	f := freeze(t, []string{"count", "--memory", "32"})
	ref := r.Reference("warm/" + f.id + ":1")
	must(t, a.Cryo(t.Context(), "push", f.ref, ref, "--plain-http"))
	away(t, ref)
	cold(t, h)
	w := prewarm(t, h, ref, "--plain-http")
	if w.Digest != f.digest || w.Already || w.Memory < 32<<20 || w.Disk < 32<<20 {
		t.Errorf("prewarmed %+v", w)
	}
	wantWarm(t, h, ref)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	withoutSegments(t, h, ref, func() {
		var all sync.WaitGroup
		ids := make([]string, 4)
		for i := range ids {
			all.Go(func() {
				var flags []string
				if i == 3 {
					flags = []string{"--eager"}
				}
				ids[i] = restoreWarm(t, h, ref, true, flags...)
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		for _, id := range ids {
			goneOn(t, f.before, await(t, h, id))
		}
	})
	if w := prewarm(t, h, ref); !w.Already {
		t.Errorf("prewarmed again: %+v", w)
	}
	refused(t, h, codeNotFound, "is not prewarmed", "prewarm", "rm", "warm/other:1")
	refused(t, h, codeUsage, "--all", "prewarm", "rm")
	must(t, h.Cryo(t.Context(), "prewarm", "rm", ref))
	wantWarm(t, h)
	if size := treeSize(t, filepath.Join(h.CryoRoot(), "store/blobs")); size > 0 {
		t.Errorf("%d bytes are left of what was fetched", size)
	}
}

// TestPrewarmBudget has the least recently used snapshot go first, and none that is in use.
func TestPrewarmBudget(t *testing.T) {
	h := newHost(t, "warm-budget", lab.HostOptions{CryoConfig: slowly})
	cold(t, h)
	var refs []string
	for range 3 {
		id := name(t)
		start(t, h, id, nil, "workload", "count", "--memory", "24")
		ref := shared.registry.Reference("warm/" + id + ":1")
		must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
		remove(t.Context(), h, id)
		refs = append(refs, ref)
	}
	need := prewarm(t, h, refs[0]).Memory
	two, one := fmt.Sprint(need*5/2), fmt.Sprint(need*3/2)
	prewarm(t, h, refs[1], "--memory", two)
	wantWarm(t, h, refs[0], refs[1])
	remove(t.Context(), h, restoreWarm(t, h, refs[0], true))
	wantWarm(t, h, refs[1], refs[0])
	if w := prewarm(t, h, refs[2], "--memory", two); len(w.Removed) != 1 || w.Removed[0].Reference != refs[1] {
		t.Errorf("removed for it: %+v", w.Removed)
	}
	wantWarm(t, h, refs[0], refs[2])
	refused(t, h, codeFull, "the budget of all", "prewarm", refs[1], "--memory", "1MiB")
	refused(t, h, codeUsage, "--memory", "prewarm", refs[1], "--memory", "much")
	refused(t, h, codeFull, "the budget of all", "prewarm", refs[2], "--memory", "1MiB") // it is there already
	inspect(t, h, refs[1])                                                               // it was not fetched, and so stays in the store

	t.Run("in use", func(t *testing.T) {
		id := restoreWarm(t, h, refs[0], true) // its memory takes half a minute to come
		restorerOf(t, h)
		refused(t, h, codeFull, "restores use", "prewarm", refs[1], "--memory", one)
		wantWarm(t, h, refs[2], refs[0])
		withoutSegments(t, h, refs[0], func() {
			must(t, h.Cryo(t.Context(), "prewarm", "rm", refs[0]))
			wantWarm(t, h, refs[2])
			await(t, h, id)
		})
	})
	t.Run("another by the name", func(t *testing.T) {
		id := name(t)
		start(t, h, id, nil, "workload", "count")
		must(t, h.Cryo(t.Context(), "checkpoint", id, refs[2]))
		remove(t.Context(), h, id)
		if all := warm(t, h); len(all) != 1 || !all[0].Stale {
			t.Errorf("prewarmed is %+v", all)
		}
		await(t, h, restoreWarm(t, h, refs[2], false))
	})
	t.Run("damaged", func(t *testing.T) {
		for dg := range inspect(t, h, refs[1]).segments() {
			damaged(t, storedAt(h, ocispec.Descriptor{Digest: dg}), damages[2].do, func() {
				refused(t, h, codeDamaged, "", "prewarm", refs[1])
			})
			break
		}
		wantWarm(t, h, refs[2])
	})
}

// TestPrewarmDisk bounds what is fetched.
func TestPrewarmDisk(t *testing.T) {
	a, b := pair(t)
	cold(t, b)
	var refs []string
	for range 2 {
		f := freeze(t, []string{"count", "--memory", "8"})
		must(t, a.Cryo(t.Context(), "push", f.ref, "--plain-http"))
		refs = append(refs, f.ref)
	}
	disk := prewarm(t, b, refs[0], "--plain-http").Disk
	if w := prewarm(t, b, refs[1], "--plain-http", "--disk", fmt.Sprint(disk*3/2)); len(w.Removed) != 1 {
		t.Errorf("removed for it: %+v", w.Removed)
	}
	wantWarm(t, b, refs[1])
	if r := b.Cryo(t.Context(), "inspect", "--pull", "never", refs[0]); r.Code != codeNotFound {
		t.Errorf("what was fetched is still there: %v", r)
	}
	refused(t, b, codeFull, "--disk", "prewarm", refs[0], "--plain-http", "--disk", fmt.Sprint(disk/2))
}

// TestPrewarmBroken breaks off prewarming at random moments: there is a whole one or none.
func TestPrewarmBroken(t *testing.T) {
	_, b := pair(t)
	ref := snapshotOf(t, b, "count", "--memory", "96")
	cold(t, b)
	begin := time.Now()
	prewarm(t, b, ref)
	takes := time.Since(begin)
	must(t, b.Cryo(t.Context(), "prewarm", "rm", ref))
	whole := 0
	for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT, syscall.SIGKILL, syscall.SIGKILL, syscall.SIGINT, syscall.SIGKILL} {
		at := time.Duration((float64(i%3) + rand.Float64()) / 3 * float64(takes))
		r := broken(t, b, at, sig, "prewarm", ref)
		switch all := warm(t, b); {
		case len(all) == 0 && r.Code == 0:
			t.Errorf("%s after %s: it says that it is prewarmed", sig, at)
		case len(all) == 0:
			wantWarm(t, b)
		default:
			whole++
			wantWarm(t, b, ref)
			id := restoreWarm(t, b, ref, true)
			await(t, b, id)
			remove(t.Context(), b, id)
			must(t, b.Cryo(t.Context(), "prewarm", "rm", "--all"))
		}
	}
	t.Logf("%d were whole", whole)
	swept(t, b)
}
