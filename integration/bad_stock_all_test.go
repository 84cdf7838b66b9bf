package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/runc"
)

// TestBadStockDump kills CRIU in a dump by a stock client, which pauses the container for it: what is said to be paused is, and can be resumed. A process that CRIU's code is just entering
// crashes: then the client is told that the container is lost.
func TestBadStockDump(t *testing.T) {
	a, _ := pair(t)
	survived := 0
	for try := 0; survived < breaks && try < 4*breaks; try++ {
		id := name(t)
		start(t, a, id, nil, "workload", "count", "--memory", "128")
		ended := make(chan lab.Result, 1)
		go func() { ended <- a.Ctr(t.Context(), "containers", "checkpoint", "--task", id, "bad/stock:1") }()
		find(t, a, called("criu"))
		time.Sleep(time.Duration(rand.Int64N(int64(150 * time.Millisecond)))) // the first ones are asked for their version
		if criu := find(t, a, called("criu")); criu != 0 {
			kill(t, criu)
		}
		r := <-ended
		t.Logf("ctr: %d, %s", r.Code, r.Stderr)
		_, status, err := a.Task(t.Context(), id)
		if err == nil && status == "PAUSED" {
			must(t, a.Ctr(t.Context(), "tasks", "resume", id))
		}
		if status != "STOPPED" || !strings.Contains(r.Stderr, "the container is lost: ") || !strings.Contains(r.Stderr, "its first process has ended") {
			counts(t, a, id)
			survived++
		}
		a.Ctr(t.Context(), "images", "rm", "bad/stock:1")
		remove(t.Context(), a, id)
	}
	if survived < breaks {
		t.Errorf("%d containers of %d survived", survived, 4*breaks)
	}
}

// TestBadStockAway restarts containerd while a stock client's dump is under way. CRIU, whose code may just enter a process, which crashes where CRIU is killed then, is left
// to be done. The container runs on, and no images stay.
func TestBadStockAway(t *testing.T) {
	h := newHost(t, "stock-away", lab.HostOptions{})
	id := name(t)
	start(t, h, id, nil, "workload", "count", "--memory", "128")
	dumps := func(p process) bool { // those before are asked for their version
		dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
		return err == nil && isCRIU(p) && strings.Contains(dir, "/"+id+"/criu-")
	}
	for range 2 {
		ended := make(chan lab.Result, 1)
		go func() { ended <- h.Ctr(t.Context(), "containers", "checkpoint", "--task", id, "bad/away:1") }()
		criu := find(t, h, dumps)
		if criu == 0 || syscall.Kill(criu, syscall.SIGSTOP) != nil {
			t.Fatalf("no dump: %v", <-ended)
		}
		if err := h.StopDaemon(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		if err := syscall.Kill(criu, syscall.SIGCONT); err != nil {
			t.Errorf("CRIU is gone: %v", err)
		}
		if err := h.StartDaemon(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-ended
		eventually(t, "the container runs", 20*time.Second, func() bool {
			_, status, err := h.Task(t.Context(), id)
			if err != nil || status == "STOPPED" {
				t.Fatalf("the container is %s, %v", status, err)
			}
			return status == "RUNNING" || h.Ctr(t.Context(), "tasks", "resume", id).Code == 0
		})
		counts(t, h, id)
		h.Ctr(t.Context(), "images", "rm", "--sync", "bad/away:1")
		// The directory itself is containerd's, which has not come to removing it.
		eventually(t, "the dump is removed", 10*time.Second, func() bool {
			images, err := filepath.Glob(filepath.Join(h.Dir, "xdg/ctrd-checkpoint*/*"))
			return err == nil && len(images) == 0
		})
		clearStockTemporary(t, h)
	}
}

// TestBadStockPause kills runc, and the client, while a task is paused and resumed: what is said to run is not frozen, and what is said to be resumed runs.
func TestBadStockPause(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count", "--memory", "16")
	hits := 0
	for try := range 4 * breaks {
		for _, verb := range []string{"pause", "resume"} {
			c := a.Command(t.Context(), "ctr", "tasks", verb, id)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = c.Wait(); close(ended) }()
			for hit := false; !hit; {
				select {
				case <-ended:
					hit = true // too late
				default:
				}
				for _, p := range processes(t, a) {
					if p.command == "runc" && !hit {
						hit = true
						hits++
						if try%2 == 0 {
							kill(t, p.pid)
						} else {
							kill(t, c.Process.Pid)
						}
					}
				}
			}
			<-ended
			time.Sleep(50 * time.Millisecond) // what a killed client has asked for is done
			var pid int
			var status string
			eventually(t, "the end of the pause", 10*time.Second, func() bool {
				var err error
				if pid, status, err = a.Task(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				return status != "PAUSING"
			})
			frozen, err := runc.Frozen(pid)
			if err != nil {
				t.Fatal(err)
			}
			if frozen != (status == "PAUSED") || verb == "resume" && frozen {
				t.Fatalf("%s, try %d: it is said to be %s, and frozen: %v", verb, try, status, frozen)
			}
			if !frozen {
				counts(t, a, id)
			}
		}
	}
	if hits == 0 {
		t.Error("nothing was killed")
	}
	t.Logf("%d of %d were killed", hits, 8*breaks)
}

// TestBadStockRestore kills ctr while it restores, so that nobody opens the container's output: the task does not hang, and can be removed.
func TestBadStockRestore(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count", "--memory", "64")
	must(t, a.Ctr(t.Context(), "containers", "checkpoint", "--task", "--rw", "--image", id, "bad/stock:2"))
	t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "rm", "bad/stock:2") })
	remove(t.Context(), a, id)
	for range breaks {
		c := a.Command(t.Context(), "ctr", "containers", "restore", "--live", id, "bad/stock:2")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		criu := find(t, a, called("criu"))
		time.Sleep(time.Duration(rand.Int64N(int64(150 * time.Millisecond))))
		kill(t, c.Process.Pid)
		_ = c.Wait()
		if criu == 0 {
			t.Fatal("no restore")
		}
		time.Sleep(time.Second)
		forced := make(chan lab.Result, 1)
		go func() { forced <- a.Ctr(t.Context(), "tasks", "delete", "--force", id) }()
		select {
		case r := <-forced:
			if r.Code != 0 {
				t.Logf("tasks delete --force: %v", r)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("tasks delete --force hangs")
		}
		remove(t.Context(), a, id)
	}
}

// TestBadStockBeside restores a checkpoint as another container while the one that it was taken of runs: the specification names that one's cgroup. The restore is
// refused, and the container runs on; so does a process that something else has put into an otherwise empty cgroup.
func TestBadStockBeside(t *testing.T) {
	a, _ := pair(t)
	id, other, ref := name(t), name(t)+"-other", "cryo.test/"+name(t)
	start(t, a, id, nil, "workload", "count", "--memory", "8")
	cleanup(t, a, other)
	t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "rm", "--sync", ref) })
	must(t, a.Ctr(t.Context(), "containers", "checkpoint", "--rw", "--task", "--image", id, ref))
	before := trace(t, a)
	refused := func() {
		t.Helper()
		r := a.Ctr(t.Context(), "containers", "restore", "--live", other, ref)
		if r.Code == 0 || !strings.Contains(r.Stderr, "cgroup") || !strings.Contains(r.Stderr, "in use") {
			t.Errorf("ctr: %d, %s", r.Code, r.Stderr)
		}
		remove(t.Context(), a, other)
	}
	for range 3 {
		refused()
		if _, status, err := a.Task(t.Context(), id); status != "RUNNING" {
			t.Fatalf("the container is %s, %v", status, err)
		}
		counts(t, a, id)
	}
	wantTrace(t, a, before)
	groups, err := filepath.Glob(filepath.Join(a.CgroupRoot(), "*", id))
	if err != nil || len(groups) != 1 {
		t.Fatalf("cgroups of %s: %q, %v", id, groups, err)
	}
	remove(t.Context(), a, id)
	if err := os.Mkdir(groups[0], 0o755); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
		eventually(t, "the cgroup is empty", 5*time.Second, func() bool { return os.Remove(groups[0]) == nil })
	}()
	if err := os.WriteFile(filepath.Join(groups[0], "cgroup.procs"), []byte(strconv.Itoa(stranger.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	refused()
	if runc.Ended(stranger.Process.Pid) {
		t.Error("a process that is not the container's was ended")
	}
}
