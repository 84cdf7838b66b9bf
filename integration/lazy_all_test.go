package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/integration/lab"
)

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
			if find(t, h, isRestoring) == 0 {
				t.Fatal("no restore")
			}
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
		kill(t, find(t, h, runsShim(id)))
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
