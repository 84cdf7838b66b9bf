package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestLazy look at containers whose memory is filled in while they run. On their host, memory
// that nobody waits for comes at 1 MiB a second, so that there is time to look.

const slowly = "[restore]\nfill-rate = 1\n"

// slowHost is a host with a snapshot of a container with so much memory, which runs no more.
func slowHost(t *testing.T, mib int) (h *lab.Host, ref string) {
	t.Helper()
	h = newHost(t, "lazy", lab.HostOptions{CryoConfig: slowly})
	id, ref := name(t), "lazy/count:1"
	start(t, h, id, nil, "workload", "count", "--memory", fmt.Sprint(mib))
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	return h, ref
}

// restoreLazily restores a snapshot and sees that it runs, and that its memory is being filled in.
func restoreLazily(t *testing.T, h *lab.Host, ref string) (id string) {
	t.Helper()
	id = name(t)
	cleanup(t, h, id)
	var r struct {
		Lazy  bool
		Eager string
	}
	out := must(t, h.Cryo(t.Context(), "restore", ref, "--name", id, "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &r); err != nil || !r.Lazy {
		t.Fatalf("%v, %s", err, out)
	}
	hello(t, h, id)
	return id
}

// hello has the workload answer, which needs next to nothing of its memory.
func hello(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	if a, err := h.AwaitAnswer(t.Context(), id, "hello"); err != nil || !a.OK {
		t.Fatalf("%s: %v, %s", id, err, a.Error)
	}
}

// restorerOf is the only restore process, which fills in memory.
func restorerOf(t *testing.T, h *lab.Host) int {
	t.Helper()
	pids := restorers(t, h)
	if len(pids) != 1 {
		t.Fatalf("there are %d restore processes", len(pids))
	}
	return pids[0]
}

// ended waits until a container has stopped, and gives what its shim has written down about that.
func ended(t *testing.T, h *lab.Host, id string) string {
	t.Helper()
	eventually(t, "the end of "+id, 30*time.Second, func() bool {
		_, status, err := h.Task(t.Context(), id)
		return err == nil && (status == "STOPPED" || status == "")
	})
	var noted struct{ Lost string }
	data, err := os.ReadFile(filepath.Join(h.Dir, "run/containerd/io.containerd.runtime.v2.task/default", id, "cryo-memory.json"))
	if err == nil {
		err = json.Unmarshal(data, &noted)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return noted.Lost
}

// TestLazy restores containers that answer before their memory is there.
func TestLazy(t *testing.T) {
	h, ref := slowHost(t, 64)
	t.Run("filled", func(t *testing.T) {
		id := restoreLazily(t, h, ref)
		restorerOf(t, h)
		await(t, h, id) // it looks at all its memory
		eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, h)) == 0 })
		await(t, h, id)
	})
	t.Run("eager", func(t *testing.T) {
		id := name(t)
		cleanup(t, h, id)
		must(t, h.Cryo(t.Context(), "restore", ref, "--name", id, "--eager"))
		if _, err := os.Stat(filepath.Join(h.Dir, "run/containerd/io.containerd.runtime.v2.task/default", id, "cryo-memory.json")); !os.IsNotExist(err) {
			t.Errorf("memory is filled in: %v", err)
		}
		await(t, h, id)
	})
	t.Run("several", func(t *testing.T) {
		var all sync.WaitGroup
		ids, results := make([]string, 3), make([]lab.Result, 3)
		for i := range ids {
			ids[i] = name(t)
			cleanup(t, h, ids[i])
			all.Go(func() { results[i] = h.Cryo(t.Context(), "restore", ref, "--name", ids[i]) })
		}
		all.Wait()
		for i, id := range ids {
			must(t, results[i])
			hello(t, h, id)
		}
		if n := len(restorers(t, h)); n != len(ids) {
			t.Errorf("%d processes fill in memory", n)
		}
		for _, id := range ids {
			await(t, h, id)
		}
	})
	t.Run("checkpoint", func(t *testing.T) {
		id, again := restoreLazily(t, h, ref), "lazy/again:1"
		done := make(chan lab.Result, 1)
		go func() { done <- h.Cryo(t.Context(), "checkpoint", id, again) }()
		paused := make(chan lab.Result, 1)
		go func() { paused <- h.Ctr(t.Context(), "tasks", "pause", id) }()
		time.Sleep(time.Second)
		if _, status, err := h.Task(t.Context(), id); status != "RUNNING" || err != nil {
			t.Errorf("it is %s, %v", status, err)
		}
		select {
		case r := <-done:
			t.Fatalf("there is a checkpoint of what is not all there: %v", r)
		case r := <-paused:
			t.Fatalf("it is paused: %v", r)
		default:
		}
		hello(t, h, id)
		await(t, h, id) // has all of it come
		<-paused        // before or after the checkpoint, or too late
		h.Ctr(t.Context(), "tasks", "resume", id)
		must(t, <-done)
		remove(t.Context(), h, id)
		await(t, h, restoreLazily(t, h, again))
		must(t, h.Cryo(t.Context(), "rm", again))
	})
	t.Run("killed filler", func(t *testing.T) {
		id := restoreLazily(t, h, ref)
		kill(t, restorerOf(t, h))
		if reason := ended(t, h, id); !strings.Contains(reason, "has died") {
			t.Errorf("the reason is %q", reason)
		}
		refusal(t, h.Cryo(t.Context(), "checkpoint", id, "lazy/lost:1"), codePrecondition, "")
	})
	t.Run("filler killed early", func(t *testing.T) {
		for i := range 4 { // while CRIU is at work, and after
			id := name(t)
			cleanup(t, h, id)
			done := make(chan lab.Result, 1)
			go func() { done <- h.Cryo(t.Context(), "restore", ref, "--name", id) }()
			eventually(t, "CRIU", 30*time.Second, restoring(t, h))
			pid := restorerOf(t, h)
			time.Sleep(time.Duration(i) * 30 * time.Millisecond)
			kill(t, pid)
			if r := <-done; r.Code != 0 {
				refusal(t, r, codeUnavailable, "the restore process has died")
			} else if reason := ended(t, h, id); !strings.Contains(reason, "has died") {
				t.Errorf("the reason is %q", reason)
			}
			remove(t.Context(), h, id)
		}
	})
	t.Run("killed shim", func(t *testing.T) {
		id := restoreLazily(t, h, ref)
		kill(t, find(t, h, called("containerd-shim")))
		ended(t, h, id)
		eventually(t, "the end of the filling", 30*time.Second, func() bool { return len(restorers(t, h)) == 0 })
	})
	t.Run("killed container", func(t *testing.T) {
		id := restoreLazily(t, h, ref)
		must(t, h.Ctr(t.Context(), "tasks", "delete", "--force", id))
		eventually(t, "the end of the restore process", 10*time.Second, func() bool { return len(restorers(t, h)) == 0 })
	})
	t.Run("damaged", func(t *testing.T) {
		var segment ocispec.Descriptor
		for digest, size := range inspect(t, h, ref).segments() {
			if size > segment.Size {
				segment = ocispec.Descriptor{Digest: digest, Size: size}
			}
		}
		damaged(t, storedAt(h, segment), damages[2].do, func() {
			id := restoreLazily(t, h, ref)
			if a, err := h.Ask(t.Context(), id); err == nil {
				t.Errorf("it has read all its memory: %v", a)
			}
			if reason := ended(t, h, id); !strings.Contains(reason, "decode frame") {
				t.Errorf("the reason is %q", reason)
			}
			refusal(t, h.Cryo(t.Context(), "restore", ref, "--name", id+"-eager", "--eager"), codeDamaged, "")
		})
	})
	t.Run("removed", func(t *testing.T) { // the last: there is no snapshot afterwards
		id := restoreLazily(t, h, ref)
		must(t, h.Cryo(t.Context(), "rm", ref))
		eventually(t, "an empty store", 10*time.Second, func() bool { return treeSize(t, filepath.Join(h.CryoRoot(), "store/blobs")) == 0 })
		await(t, h, id)
	})
}

// TestLazyTwin has a process fork, unmap, move and give back memory while it is filled, and compare it with its twin.
func TestLazyTwin(t *testing.T) {
	slow := newHost(t, "lazy-twin", lab.HostOptions{CryoConfig: slowly})
	fast, _ := pair(t)
	for _, h := range []*lab.Host{slow, fast} {
		id, ref := name(t), "lazy/twin:1"
		start(t, h, id, nil, "workload", "churn")
		forget(t, h, ref)
		must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
		remove(t.Context(), h, id)
		for seed := range 2 {
			id := restoreLazily(t, h, ref)
			if a, err := h.Ask(t.Context(), id, "churn", fmt.Sprint(seed)); err != nil || !a.OK {
				t.Fatalf("%s, seed %d: %v, %s", h.Name, seed, err, a.Error)
			}
			remove(t.Context(), h, id)
		}
	}
}

// TestLazyUnder has a process whose memory is filled in later, under one whose memory at the same addresses is there at once, which the first
// inherits in CRIU's restore. Where the kernel makes pages huge without being asked (transparent_hugepage/enabled is "always"), those must not
// become such: what else lies in them would be zeros to the process below.
func TestLazyUnder(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "lazy/under:1"
	start(t, a, id, nil, "workload", "churn", "--under")
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), a, id)
	id = restoreLazily(t, a, ref)
	found := slices.DeleteFunc(processes(t, a), func(p process) bool { return p.command != "workload" && p.command != "exe" })
	if len(found) != 3 {
		t.Errorf("there are %v", found)
	}
	for _, p := range found {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
		if err != nil || !strings.Contains(string(status), "THP_enabled:\t1\n") {
			t.Errorf("%d may not have huge pages any more: %v, %s", p.pid, err, status)
		}
	}
	if a, err := a.Ask(t.Context(), id, "churn", "1"); err != nil || !a.OK {
		t.Fatalf("%v, %s", err, a.Error)
	}
}

// TestLazyOff has an operator who wants all memory there before a container runs.
func TestLazyOff(t *testing.T) {
	h := newHost(t, "lazy-off", lab.HostOptions{CryoConfig: "[restore]\nlazy = false\n"})
	id, ref := name(t), "lazy/off:1"
	start(t, h, id, nil, "workload", "count")
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	if out := must(t, h.Cryo(t.Context(), "restore", ref, "--name", id, "--json")).Stdout; !strings.Contains(out, `"lazy": false`) || !strings.Contains(out, "restore.lazy") {
		t.Errorf("restore says %s", out)
	}
	await(t, h, id)
}
