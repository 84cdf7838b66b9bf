package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestGPUArriving restore containers with GPUs whose memory is still being pulled.

// someContext has a container have memory that the driver saves, beside what is handed over.
var someContext = []string{"--env", fmt.Sprintf("FAKECUDA_CONTEXT_MIB=%d", contextBytes>>20)}

// Of that memory a 16th is not zero. More than the segments are long must be beside its ends.
const (
	contextBytes = 192 << 20
	contextEnds  = 16 << 20
)

// pushedGPU gives the path in the registry of a snapshot of a new fakeapp on host a, which it ends, in small segments and in no store.
func pushedGPU(t *testing.T, a *lab.Host, flags []string, args ...string) (path string, before lab.Answer) {
	t.Helper()
	id := name(t)
	path = "gpu-arriving/" + id + ":1"
	ref := shared.registry.Reference(path)
	before = startGPU(t, a, id, flags, args...)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http", "--segment-size", "4MiB"))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "rm", ref))
	return path, before
}

// segmentsOf gives a segment with memory of a process that nobody touches before its GPUs are loaded, and those with nothing but device memory, of a snapshot in the registry.
func segmentsOf(t *testing.T, path string) (host, device map[string]bool) {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, err := registry.NewPuller(t.Context(), s, shared.registry.Reference(path), registry.Options{PlainHTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	snapshot, err := image.Open(t.Context(), p, p.Descriptor())
	if err != nil {
		t.Fatal(err)
	}
	x, err := snapshot.ReadIndex(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	from, to := contextOf(t, p, snapshot)
	host, device = map[string]bool{}, map[string]bool{}
	busy := map[string]bool{} // has memory that CRIU or the process may need at once
	for _, f := range x.Frames {
		d := digest.NewDigestFromBytes(digest.SHA256, x.Segments[f.Segment].Digest[:]).String()
		if _, _, is := format.DeviceOf(f.Runs[0].File); is {
			device[d] = true
			continue
		}
		host[d] = true
		if f.Runs[0].Addr < from || f.End(x.PageSize) > to {
			busy[d] = true
		}
	}
	among := func(others map[string]bool) func(string, bool) bool {
		return func(d string, _ bool) bool { return others[d] }
	}
	maps.DeleteFunc(device, among(host))
	maps.DeleteFunc(host, among(busy))
	if len(host) == 0 || len(device) < 3 {
		t.Fatalf("%d segments of what the driver has saved, %d of devices", len(host), len(device))
	}
	return some(host), device
}

// contextOf gives where [someContext] is, but for its ends: the kernel may have made one mapping of it and what is beside it.
func contextOf(t *testing.T, p *registry.Puller, snapshot *image.Snapshot) (from, to uint64) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	if _, err := snapshot.UnpackImages(t.Context(), p, dir); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "mm-*.img"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d processes have memory: %v", len(files), err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		const head = 12 // two magic numbers and the length of what follows
		var e mm.MmEntry
		if err := proto.Unmarshal(data[head:], &e); err != nil {
			t.Fatal(err)
		}
		for _, v := range e.GetVmas() {
			const writable = unix.PROT_READ | unix.PROT_WRITE
			if n := v.GetEnd() - v.GetStart(); v.GetProt() == writable && n >= contextBytes && n < contextBytes+contextEnds && from == 0 {
				from, to = v.GetStart()+contextEnds, v.GetEnd()-contextEnds
			}
		}
	}
	if from == 0 {
		t.Fatal("no mapping is as large as what the driver has saved")
	}
	return from, to
}

// one gives some member of a set.
func one(set map[string]bool) string { return slices.Min(slices.Collect(maps.Keys(set))) }

// some is a member of a set: others are pulled beside it.
func some(set map[string]bool) map[string]bool { return map[string]bool{one(set): true} }

// filling tells, from then on, whether memory has been copied to a host's GPUs.
func filling(t *testing.T, h *lab.Host) func() bool {
	t.Helper()
	order(t, h, "cuMemcpyHtoDAsync 1 pass")
	return obeyed(t, h)
}

// ownRoot is the directory of a store that has nothing yet, and goes with the test.
func ownRoot(t *testing.T, h *lab.Host) string {
	t.Helper()
	root := filepath.Join(h.Dir, name(t))
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return root
}

// nothingIn sees that neither the container nor a name of the snapshot is left in a store.
func nothingIn(t *testing.T, h *lab.Host, root, id, ref string) {
	t.Helper()
	if out := must(t, h.Ctr(t.Context(), "containers", "ls", "--quiet")).Stdout; strings.Contains(out, id) {
		t.Errorf("there is a container:\n%s", out)
	}
	if r := h.Cryo(t.Context(), "--root", root, "verify", "--pull", "never", "--allow", "all", ref); r.Code != codeNotFound {
		t.Errorf("verify says %d:\n%s", r.Code, r.Stderr)
	}
	eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, h)) == 0 })
	alone(t, h)
}

// silent sees that a container does not answer while a command restores it.
func (c *underway) silent(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	c.under(t)
	if a, err := h.Ask(t.Context(), id); err == nil {
		t.Errorf("it answers: %+v", a)
	}
}

// TestGPUArriving restores containers with GPUs while their memory is pulled.
func TestGPUArriving(t *testing.T) {
	a, b := gpuPair(t)
	ownOrder(t, b)
	path, before := pushedGPU(t, a, slices.Concat(heeding, someContext), "--blocks", "3,40")
	host, device := segmentsOf(t, path)
	for what, test := range map[string]struct {
		held    map[string]bool
		filling bool // meanwhile
	}{
		"some device memory":  {some(device), true},
		"memory of processes": {host, true},
		"all device memory":   {device, false},
	} {
		t.Run("held "+what, func(t *testing.T) {
			g := newGate(t, shared.registry, path)
			g.segments, g.strict = test.held, true
			ref, id := g.address+"/"+path, name(t)
			root := ownRoot(t, b)
			cleanup(t, b, id)
			filled := filling(t, b)
			c := begun(t, b, "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices", "--json")
			eventually(t, "the pull", 30*time.Second, func() bool { return g.held.Load() > 0 })
			if test.filling {
				eventually(t, "the first bytes on a device", 30*time.Second, func() bool { c.under(t); return filled() })
			} else {
				eventually(t, "processes", 30*time.Second, func() bool { return find(t, b, called("fakeapp")) != 0 })
				time.Sleep(time.Second)
				if filled() {
					t.Error("something is on a device, and nothing has come")
				}
			}
			c.silent(t, b, id)
			if r := b.Cryo(t.Context(), "--root", root, "verify", "--pull", "never", "--allow", "all", ref); r.Code != codeNotFound {
				t.Errorf("what has not come has a name: %d", r.Code)
			}
			g.open()
			if r := said[arrivingRestored](t, <-c.ended); !r.Lazy || r.PullFirst != "" || r.Running <= 0 || r.Pull.Seconds < r.Running {
				t.Errorf("it says %+v", r)
			}
			goneOn(t, before, unharmed(t, b, id, before))
			alone(t, b)
			must(t, b.Cryo(t.Context(), "--root", root, "verify", "--allow", "all", ref))
			must(t, b.Cryo(t.Context(), "--root", root, "rm", ref))
			unharmed(t, b, id, before)
			remove(t.Context(), b, id)
		})
	}
}

// TestGPUArrivingWays restores from a registry what is pulled first, and what is pulled in other ways.
func TestGPUArrivingWays(t *testing.T) {
	a, b := gpuPair(t)
	path, before := pushedGPU(t, a, slices.Concat(handing, someContext), "--blocks", "3,40")
	driven, beforeDriven := pushedGPU(t, a, slices.Concat(oneGPU, someContext), "--blocks", "3,40")
	_, device := segmentsOf(t, path)
	for _, test := range []struct {
		name, path, first string
		before            lab.Answer
		gate              func(*gate)
		flags             []string
	}{
		{"eager", path, "--eager", before, nil, []string{"--eager"}},
		{"no ranges", path, "parts of blobs", before, func(g *gate) { g.ranges.Store(false) }, nil},
		{"damaged on the way", path, "", before, func(g *gate) { g.damaged, g.mends = one(device), true }, nil},
		{"driver, one at a time", driven, "", beforeDriven, nil, []string{"--concurrency", "1"}},
		{"driver, first", driven, "--pull-first", beforeDriven, nil, []string{"--pull-first"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newGate(t, shared.registry, test.path)
			if test.gate != nil {
				test.gate(g)
			}
			g.open()
			ref, id, root := g.address+"/"+test.path, name(t), ownRoot(t, b)
			cleanup(t, b, id)
			args := slices.Concat([]string{"--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices", "--json"}, test.flags)
			r := said[arrivingRestored](t, b.Cryo(t.Context(), args...))
			if !strings.Contains(r.PullFirst, test.first) || test.first == "" && r.PullFirst != "" {
				t.Errorf("it says %+v", r)
			}
			if g.damaged != "" && g.damages.Load() < 2 {
				t.Errorf("what was damaged came %d times", g.damages.Load())
			}
			goneOn(t, test.before, unharmed(t, b, id, test.before))
			must(t, b.Cryo(t.Context(), "--root", root, "verify", "--allow", "all", ref))
			alone(t, b)
			remove(t.Context(), b, id)
		})
	}
}

// TestGPUArrivingOther restores on a host where /proc/driver/nvidia names another GPU for the minor number than the driver does. The shim opens the
// wrong GPU first, ends the process that loads device memory, and starts it again. The restore must succeed.
func TestGPUArrivingOther(t *testing.T) {
	a, b := gpuPair(t)
	path, before := pushedGPU(t, a, handing, "--blocks", "3,40")
	listed := t.TempDir()
	for i := range 8 {
		dir := filepath.Join(listed, "nvidia/gpus", fmt.Sprintf("0000:0%d:00.0", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("GPU UUID: GPU-00000000-0000-0000-0000-00000000000%d\nDevice Minor: %d\n", i, i)
		if err := os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	must(t, b.Run(t.Context(), "mount", "--bind", listed, "/proc/driver"))
	t.Cleanup(func() { must(t, b.Run(context.Background(), "umount", "/proc/driver")) })
	ref, id, root := shared.registry.Reference(path), name(t), ownRoot(t, b)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices"))
	goneOn(t, before, unharmed(t, b, id, before))
	alone(t, b)
	remove(t.Context(), b, id)
}

// TestGPUArrivingIncrement has a snapshot of which some is here with another, listed as its parent's, and what is here by a pull that was broken off.
func TestGPUArrivingIncrement(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	first, second := "gpu-arriving/"+id+":1", "gpu-arriving/"+id+":2"
	before := startGPU(t, a, id, slices.Concat(handing, someContext), "--blocks", "3,40")
	for _, path := range []string{first, second} {
		ref := shared.registry.Reference(path)
		forget(t, a, ref)
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http", "--segment-size", "4MiB"))
	}
	remove(t.Context(), a, id)
	root := ownRoot(t, b)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "--root", root, "pull", shared.registry.Reference(first), "--plain-http"))
	ref := shared.registry.Reference(second)
	r := said[arrivingRestored](t, b.Cryo(t.Context(), "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices", "--json"))
	if r.PullFirst != "" || r.Pull.There == 0 || r.Pull.Moved == 0 {
		t.Errorf("it says %+v", r)
	}
	goneOn(t, before, unharmed(t, b, id, before))
	must(t, b.Cryo(t.Context(), "--root", root, "verify", "--allow", "all", ref))
	remove(t.Context(), b, id)

	g := newGate(t, shared.registry, second)
	_, device := segmentsOf(t, second)
	g.segments, g.strict = some(device), true
	ref, root = g.address+"/"+second, ownRoot(t, b)
	c := begun(t, b, "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices")
	eventually(t, "the pull", 30*time.Second, func() bool { return g.held.Load() > 0 })
	c.signal(syscall.SIGINT)
	<-c.ended
	g.open()
	r = said[arrivingRestored](t, b.Cryo(t.Context(), "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices", "--json"))
	if r.PullFirst != "" || r.Pull.There == 0 {
		t.Errorf("it begins anew: %+v", r)
	}
	goneOn(t, before, unharmed(t, b, id, before))
	alone(t, b)
}

// TestGPUArrivingFull has no room for what is pulled.
func TestGPUArrivingFull(t *testing.T) {
	a, b := gpuPair(t)
	path, _ := pushedGPU(t, a, handing, "--blocks", "3,40")
	root, outside := small(t, b, 32)
	ref, id := shared.registry.Reference(path), name(t)
	cleanup(t, b, id)
	free := inUse(t, b)
	refusal(t, quietly(b.Cryo(t.Context(), "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices")), codeFull, "o space left")
	nothingIn(t, b, root, id, ref)
	empty(t, outside)
	eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == free })
}

// TestGPUArrivingFails has the memory of a container with GPUs not come, and kills those that take part: nothing of it is left, neither on the host nor
// on its GPUs, and the next restore goes on with what has come.
func TestGPUArrivingFails(t *testing.T) {
	a, b := gpuPair(t)
	ownOrder(t, b)
	path, before := pushedGPU(t, a, slices.Concat(heeding, someContext), "--blocks", "3,40")
	host, device := segmentsOf(t, path)
	both := some(device)
	maps.Copy(both, host)
	var killed time.Time
	victim := func(is func(process) bool) func(*testing.T, *gate, *underway) {
		return func(t *testing.T, _ *gate, _ *underway) {
			killed = time.Now()
			pid := find(t, b, is)
			if pid == 0 {
				t.Fatal("there is none")
			}
			kill(t, pid)
		}
	}
	dies := func(_ *testing.T, g *gate, _ *underway) { g.die() }
	for _, test := range []struct {
		name  string
		held  map[string]bool
		code  int
		words string
		do    func(*testing.T, *gate, *underway)
	}{
		{"registry dies in memory of processes", host, codeUnavailable, "pull", dies},
		{"registry dies in device memory", some(device), codeUnavailable, "pull", dies},
		{"interrupted", some(device), codeInterrupted, "", func(_ *testing.T, _ *gate, c *underway) { c.signal(syscall.SIGINT) }},
		{"terminated", host, codeInterrupted, "", func(_ *testing.T, _ *gate, c *underway) { c.signal(syscall.SIGTERM) }},
		{"killed command", some(device), codeKilled, "", func(_ *testing.T, _ *gate, c *underway) { c.signal(syscall.SIGKILL) }},
		{"killed keeper", some(device), codeAborted, "", victim(holding)},
		{"killed keeper, processes", both, codeAborted, "", victim(holding)},
		{"killed restore process", some(device), codeUnavailable, "the restore process has died", victim(called("cryo-restore"))},
		{"killed restore process, processes", both, codeUnavailable, "the restore process has died", victim(called("cryo-restore"))},
		{"killed shim", some(device), codeAborted, "", victim(called(commands["shim"]))},
		{"killed container", some(device), codeAborted, "", victim(called("fakeapp"))},
		{"killed when restored", some(device), codeAborted, "", func(t *testing.T, g *gate, c *underway) {
			eventually(t, "memory of the processes", 30*time.Second, func() bool {
				return slices.ContainsFunc(strings.Split(read(t, b.Log()), "\n"), func(line string) bool {
					return strings.Contains(line, "the memory of a restored container is there") && strings.Contains(line, "killed-when-restored")
				})
			})
			victim(called("fakeapp"))(t, g, c)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newGate(t, shared.registry, path)
			g.segments, g.strict = test.held, true
			ref, id := g.address+"/"+path, name(t)
			root := ownRoot(t, b)
			cleanup(t, b, id)
			free := inUse(t, b)
			filled := filling(t, b)
			unchanged(t, b, func() {
				c := begun(t, b, "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices")
				// Device memory may wait for memory of the processes that does not come.
				eventually(t, "the first bytes on a device", 30*time.Second, func() bool { c.under(t); return g.held.Load() > 0 && (filled() || holdsAny(test.held, host)) })
				eventually(t, "processes", 30*time.Second, func() bool { return find(t, b, called("fakeapp")) != 0 })
				c.silent(t, b, id)
				test.do(t, g, c)
				r := quietly(<-c.ended)
				if took := time.Since(killed); test.code == codeAborted && took > 8*time.Second { // it is not a deadline that ends it
					t.Errorf("it ends %s after what was killed", took)
				}
				if test.words != "" {
					refusal(t, r, test.code, test.words)
				} else if r.Code != test.code {
					t.Errorf("exit code %d, want %d:\n%s", r.Code, test.code, r.Stderr)
				}
				if test.code == codeKilled { // if the restore process had already let the container run, it runs all the same
					g.open()
					calledOff(t, b, id)
					remove(t.Context(), b, id)
					eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, b)) == 0 })
					alone(t, b)
					return
				}
				nothingIn(t, b, root, id, ref)
			})
			eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == free })
			g.open()
		})
	}
	t.Run("damaged device memory", func(t *testing.T) { damagedGPU(t, b, path, one(device)) })
	t.Run("damaged memory of processes", func(t *testing.T) { damagedGPU(t, b, path, one(host)) })
	ref, id := shared.registry.Reference(path), name(t)
	cleanup(t, b, id)
	forget(t, b, ref)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices"))
	goneOn(t, before, unharmed(t, b, id, before))
	must(t, b.Cryo(t.Context(), "verify", "--allow", "all", ref))
	alone(t, b)
}

// holdsAny reports whether a set has any of another's.
func holdsAny(set, others map[string]bool) bool {
	for d := range others {
		if set[d] {
			return true
		}
	}
	return false
}

// damagedGPU restores from a registry that serves a segment that is damaged.
func damagedGPU(t *testing.T, b *lab.Host, path, segment string) {
	g := newGate(t, shared.registry, path)
	g.damaged = segment
	g.open()
	ref, id := g.address+"/"+path, name(t)
	root := ownRoot(t, b)
	cleanup(t, b, id)
	free := inUse(t, b)
	refusal(t, quietly(b.Cryo(t.Context(), "--root", root, "restore", ref, "--name", id, "--plain-http", "--wait", "--allow", "devices")), codeDamaged, segment)
	nothingIn(t, b, root, id, ref)
	eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == free })
}
