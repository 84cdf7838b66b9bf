package integration

import (
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

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
			id := restoreOnce(t, b, ref)
			await(t, b, id)
			remove(t.Context(), b, id)
			must(t, b.Cryo(t.Context(), "prewarm", "rm", "--all"))
		}
	}
	t.Logf("%d were whole", whole)
	swept(t, b)
}

// TestPrewarm: after prewarming, a restore needs no registry.
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
	if w.Digest != f.digest || w.Already || !w.Fetched || w.Size < 32<<20 {
		t.Errorf("prewarmed %+v", w)
	}
	wantWarm(t, h, ref)
	wantCached(t, h, ref)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	ids := make([]string, 4)
	for i := range ids {
		all.Go(func() {
			var flags []string
			if i == 3 {
				flags = []string{"--eager"}
			}
			ids[i] = restoreOnce(t, h, ref, flags...)
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	for _, id := range ids {
		goneOn(t, f.before, await(t, h, id))
	}
	if w := prewarm(t, h, ref); !w.Already || !w.Fetched {
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

// TestPrewarmLocal prewarms what is in the store, which stays there.
func TestPrewarmLocal(t *testing.T) {
	h := newHost(t, "warm-local", lab.HostOptions{CryoConfig: slowly})
	cold(t, h)
	var refs []string
	for range 2 {
		refs = append(refs, snapshotOf(t, h, "count", "--memory", "24"))
		if w := prewarmIn(t, h, diskBudget(1<<20), refs[len(refs)-1]); w.Fetched || len(w.Removed) > 0 {
			t.Errorf("prewarmed %+v", w)
		}
	}
	wantWarm(t, h, refs...)
	t.Run("in use", func(t *testing.T) {
		id := restoreOnce(t, h, refs[0]) // its memory takes half a minute to come
		wantWarm(t, h, refs[1], refs[0])
		must(t, h.Cryo(t.Context(), "prewarm", "rm", refs[0]))
		wantWarm(t, h, refs[1])
		inspect(t, h, refs[0])
		must(t, h.Cryo(t.Context(), "rm", refs[0]))
		await(t, h, id)
	})
	t.Run("damaged", func(t *testing.T) {
		ref := snapshotOf(t, h, "count", "--memory", "24")
		for dg := range inspect(t, h, ref).segments() {
			damaged(t, storedAt(h, ocispec.Descriptor{Digest: dg}), damages[2].do, func() {
				refusal(t, h.Cryo(t.Context(), "prewarm", ref), codeDamaged, "")
			})
			break
		}
		wantWarm(t, h, refs[1])
	})
	t.Run("another by the name", func(t *testing.T) {
		id := name(t)
		start(t, h, id, nil, "workload", "count")
		must(t, h.Cryo(t.Context(), "checkpoint", id, refs[1]))
		remove(t.Context(), h, id)
		wantWarm(t, h)
		await(t, h, restoreOnce(t, h, refs[1]))
	})
}

// TestPrewarmDisk bounds what is fetched: the least recently used goes first.
func TestPrewarmDisk(t *testing.T) {
	a, b := pair(t)
	cold(t, b)
	var refs []string
	for range 3 {
		f := freeze(t, []string{"count", "--memory", "8"})
		must(t, a.Cryo(t.Context(), "push", f.ref, "--plain-http"))
		refs = append(refs, f.ref)
	}
	size := prewarm(t, b, refs[0], "--plain-http").Size
	two := diskBudget(size * 5 / 2)
	prewarmIn(t, b, two, refs[1], "--plain-http")
	wantWarm(t, b, refs[0], refs[1])
	id := restoreOnce(t, b, refs[0])
	await(t, b, id)
	remove(t.Context(), b, id)
	wantWarm(t, b, refs[1], refs[0])
	if w := prewarmIn(t, b, two, refs[2], "--plain-http"); len(w.Removed) != 1 || w.Removed[0].Reference != refs[1] {
		t.Errorf("removed for it: %+v", w.Removed)
	}
	wantWarm(t, b, refs[0], refs[2])
	if r := b.Cryo(t.Context(), "inspect", "--pull", "never", refs[1]); r.Code != codeNotFound {
		t.Errorf("what was fetched is still there: %v", r)
	}
	refusal(t, configured(t, b, diskBudget(size/2), "prewarm", refs[1], "--plain-http"), codeFull, "disk under [prewarm]")
}
