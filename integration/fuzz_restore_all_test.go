package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/integration/lab"
)

var (
	fuzzFor    = flag.Duration("fuzz-for", 20*time.Second, "how long TestFuzzRestore goes on")
	fuzzSeed   = flag.Uint64("fuzz-seed", 0, "where its choices begin; 0: anywhere")
	fuzzCorpus = flag.String("fuzz-corpus", "", "directory in which it keeps what it found, and what was restored otherwise than the snapshot it was made of")
)

// fuzzPatience is how long a restore may take; the command is broken off then.
const fuzzPatience = 10 * time.Second

// TestFuzzRestore restores snapshots whose CRIU images are valid but for some changes, and asks the kernel what has become of it: files outside of the container are
// as they were, and its processes have what the specification grants. What the review refuses is not restored. The oracle knows nothing of the review, nor
// of what cryo compares by itself.
func TestFuzzRestore(t *testing.T) {
	_, b := pair(t)
	pullBase(t, b)
	canaries := newCanaries(t, b)
	var seeds []*fuzzed
	for _, workload := range []string{"files", "pipes", "unixsock"} {
		seeds = append(seeds, newFuzzed(t, b, workload, canaries.dir))
	}
	seeds = append(seeds, forgerySeeds["capless"](t, b, canaries))
	seed := *fuzzSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	end := time.Now().Add(*fuzzFor)
	var tried, accepted, restored, hung, found int
	refusals := map[string]int{}
	for n := uint64(0); time.Now().Before(end); n++ {
		rng := rand.New(rand.NewPCG(seed, n))
		f := seeds[rng.IntN(len(seeds))]
		dir := filepath.Join(f.scratch, "images")
		what := f.mutate(t, rng, dir, canaries.dir)
		tried++
		if err := f.review(dir); err != nil {
			refusals[fmt.Sprintf("%T", err)]++
			continue
		}
		accepted++
		t.Run(fmt.Sprintf("%d-%d", seed, n), func(t *testing.T) {
			o := f.restore(t, dir, canaries)
			if o.restored {
				restored++
			}
			if o.hung {
				hung++
			}
			if len(o.findings) > 0 {
				found++
				f.keep(t, dir, seed, n, what, o.findings)
			}
			for _, finding := range o.findings {
				t.Errorf("%s\nafter: %s", finding, strings.Join(what, "; "))
			}
		})
	}
	t.Logf("%d tried, %d accepted by the review, %d of them restored by CRIU, %d broken off after %s, %d findings; refused: %v", tried, accepted, restored, hung, fuzzPatience, found, refusals)
	if restored == 0 && *fuzzFor >= time.Minute {
		t.Error("nothing was restored: the oracle was not asked")
	}
}

// fuzzed is a snapshot that mutations begin with.
type fuzzed struct {
	workload string
	host     *lab.Host
	forger   *forger
	images   string // CRIU's, as they were
	scratch  string
	allow    []string   // flags of restore
	spec     specs.Spec // confined
	base     profile    // of its container, restored as it is
}

func newFuzzed(t *testing.T, h *lab.Host, workload, canaries string) *fuzzed {
	t.Helper()
	return newFuzzedOf(t, h, canaries, nil, nil, "workload", workload)
}

// newFuzzedOf is newFuzzed of a container with flags of ctr run, which is granted what they ask for.
func newFuzzedOf(t *testing.T, h *lab.Host, canaries string, flags []string, grants []trust.Grant, args ...string) *fuzzed {
	t.Helper()
	a, _ := pair(t)
	pullBase(t, h)
	id := name(t)
	ref := "cryo.test/" + id + ":1"
	workload := args[len(args)-1]
	startImage(t, a, shared.image, id, flags, args...)
	await(t, a, id)
	pid, _, err := a.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"hostile": canaries, "run/hostile": canaries, "dev/shm/hostile": "/", "slash": "/"} {
		if err := os.Symlink(to, fmt.Sprintf("/proc/%d/root/%s", pid, link)); err != nil {
			t.Fatal(err)
		}
	}
	away(t, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--file-locks"))
	remove(t.Context(), a, id)
	f := &fuzzed{workload: workload, host: h, scratch: t.TempDir(), images: t.TempDir(),
		forger: newForger(t, frozen{id: id, ref: ref, digest: inspect(t, a, ref).Digest})}
	var config image.Config
	if err := json.Unmarshal(f.forger.config, &config); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(config.Spec, &f.spec); err != nil {
		t.Fatal(err)
	}
	for _, g := range grants {
		f.allow = append(f.allow, "--allow", string(g))
	}
	if _, err := trust.Confine(&f.spec, nil, trust.Policy{Allow: grants}); err != nil {
		t.Fatal(err)
	}
	t.Run("unchanged-"+workload, func(t *testing.T) {
		f.forger.forgeImages(t, h, "cryo.test/fuzz:1", func(dir string) {
			if err := os.CopyFS(f.images, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
		})
		if err := f.review(f.images); err != nil {
			t.Fatal(err)
		}
		if o := f.run(t, func(pid int) { f.base = profileOf(t, pid) }); !o.restored {
			t.Fatalf("the snapshot could not be restored as it is: %s", o.said)
		}
	})
	if len(f.base.mounts) == 0 {
		t.Fatal("the restored container has no mounts: it has ended")
	}
	return f
}

func (f *fuzzed) review(dir string) error {
	requests, err := trust.ReviewImages(os.DirFS(dir), &f.spec, func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
	return cmp.Or(err, trust.Refuse(requests))
}

// run restores what the forger made last, and has a look at the container where there is one.
func (f *fuzzed) run(t *testing.T, look func(pid int)) (o outcome) {
	t.Helper()
	id := "fuzz-" + name(t)[len(name(t))-6:]
	ctx, cancel := context.WithTimeout(t.Context(), fuzzPatience)
	defer cancel()
	r := f.host.Cryo(ctx, append([]string{"restore", "cryo.test/fuzz:1", "--name", id}, f.allow...)...)
	o.hung, o.code, o.said = ctx.Err() != nil, r.Code, r.Stderr
	if r.Code == 0 {
		if pid, _, err := f.host.Task(t.Context(), id); err == nil && pid > 0 {
			o.restored = true
			look(pid)
		}
	}
	remove(cleanupContext(t), f.host, id)
	return o
}

type outcome struct {
	restored, hung bool
	code           int    // the command's exit code
	said           string // and what it said on standard error
	findings       []string
}

// bring makes a snapshot with changed images, as cryo.test/fuzz:1 in the host's store.
func (f *fuzzed) bring(t *testing.T, dir string) {
	t.Helper()
	f.forger.forgeImages(t, f.host, "cryo.test/fuzz:1", func(at string) {
		old, err := filepath.Glob(filepath.Join(at, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range old {
			if err := os.RemoveAll(name); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.CopyFS(at, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	})
}

// restore has CRIU restore changed images, and gives what is otherwise than granted.
func (f *fuzzed) restore(t *testing.T, dir string, c *canaries) (o outcome) {
	f.bring(t, dir)
	before := c.look()
	var findings []string
	o = f.run(t, func(pid int) { findings = f.base.compare(t, pid, &f.spec) })
	o.findings = findings
	o.findings = append(o.findings, changes(before, c.look())...)
	return o
}

// keep puts a finding where it is looked for.
func (f *fuzzed) keep(t *testing.T, dir string, seed, n uint64, what, findings []string) {
	if *fuzzCorpus == "" {
		return
	}
	at := filepath.Join(*fuzzCorpus, fmt.Sprintf("%s-%d-%d", f.workload, seed, n))
	err := os.MkdirAll(at, 0o700)
	if err == nil {
		err = exec.Command("cp", "-r", dir, at).Run()
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(at, "finding"), []byte(strings.Join(append(what, findings...), "\n")+"\n"), 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}
