package device

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/gputest"
)

// traced counts the threads of a process that something traces, of how many. Source: proc_pid_status(5), TracerPid.
func traced(pid int) (n, of int) {
	for _, tid := range threads(pid) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
		if err != nil {
			continue
		}
		of++
		if !bytes.Contains(status, []byte("TracerPid:\t0\n")) {
			n++
		}
	}
	return n, of
}

// TestStop takes processes there and back that call the driver all the time by a call that does not wait for its lock, and that ends them between checkpoint and restore.
func TestStop(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run("--processes", "2", "--poll")
	c := r.start()
	for range 3 {
		done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
		if err := c.Stop(t.Context(), a.PIDs); err != nil {
			t.Fatal(err)
		}
		r.Order("checkpoint * slow 100", "restore * slow 100")
		done(t)(c.Checkpoint(t.Context(), a.PIDs))
		for _, pid := range a.PIDs {
			if n, of := traced(pid); n != of-1 || n < 2 {
				t.Errorf("%d of %d threads stand still", n, of)
			}
		}
		states(t, c, a.PIDs, StateCheckpointed)
		done(t)(c.Restore(t.Context(), a.PIDs, nil))
		done(t)(c.Unlock(t.Context(), a.PIDs))
		for _, pid := range a.PIDs {
			if n, _ := traced(pid); n != 0 {
				t.Errorf("%d threads stand still after the unlock", n)
			}
			if blocked := blockedSignals(t, pid); blocked {
				t.Error("the driver's thread has signals blocked still")
			}
		}
		a.Works()
	}
	if err := c.Yield(t.Context()); err != nil {
		t.Error(err)
	}
}

// blockedSignals reports whether the driver's thread of a process has SIGTERM blocked, which fakeapp handles.
func blockedSignals(t *testing.T, pid int) bool {
	t.Helper()
	for _, tid := range threads(pid) {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", pid, tid))
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
		if err != nil || !bytes.HasPrefix(comm, []byte("cuda0")) {
			continue
		}
		_, text, _ := bytes.Cut(status, []byte("SigBlk:\t"))
		var mask uint64
		if _, err := fmt.Sscanf(string(text), "%x", &mask); err != nil {
			t.Fatal(err)
		}
		return mask == ^uint64(0)&^(1<<(syscall.SIGTRAP-1)|1<<(syscall.SIGKILL-1)|1<<(syscall.SIGSTOP-1))
	}
	t.Fatal("it has no thread of the driver")
	return false
}

// TestStopYields: what is stopped in a process that stands still by SIGSTOP, as by a frozen cgroup, is let go before it has come to that, and the helper's death lets all go.
func TestStopYields(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run()
	c := r.start()
	pid := a.PIDs[0]
	for _, let := range []func() error{
		func() error { return c.Yield(t.Context()) },
		func() error { return c.Kill() },
	} {
		if err := c.Stop(t.Context(), a.PIDs); err != nil {
			t.Fatal(err)
		}
		if n, of := traced(pid); n != of {
			t.Errorf("%d of %d threads are traced", n, of)
		}
		if err := let(); err != nil {
			t.Fatal(err)
		}
		gputest.Eventually(t, "nothing traces it", func() bool { n, _ := traced(pid); return n == 0 })
		a.Works()
	}
}

// TestStopEnds: a process that is killed while its threads stand still is gone, and its parent hears of it when it is let go.
func TestStopEnds(t *testing.T) {
	r := newRig(t, 1)
	a := r.Run()
	c := r.start()
	done(t)(c.Lock(t.Context(), a.PIDs, time.Second))
	if err := c.Stop(t.Context(), a.PIDs); err != nil {
		t.Fatal(err)
	}
	done(t)(c.Checkpoint(t.Context(), a.PIDs))
	if err := syscall.Kill(a.PIDs[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Restore(t.Context(), a.PIDs, nil); err == nil && got[0].Code == 0 {
		t.Errorf("got %+v", got)
	}
	if err := c.Yield(t.Context()); err != nil {
		t.Error(err)
	}
	gputest.Eventually(t, "it is gone", func() bool { return len(threads(a.PIDs[0])) == 0 })
}

// TestDead: the first process of a pid namespace that ends, and waits for another of the namespace which is traced, counts as ended. Who traces would wait for it else, and it for them.
func TestDead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: no namespace can be made")
	}
	first := exec.Command("sleep", "1000")
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Process.Kill(); _ = first.Wait() })
	pid := first.Process.Pid
	second := exec.Command("nsenter", "--target", strconv.Itoa(pid), "--pid", "sleep", "1000")
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Process.Kill(); _ = second.Wait() })
	var traced int
	gputest.Eventually(t, "a process in the namespace", func() bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", second.Process.Pid, second.Process.Pid))
		_, err := fmt.Sscan(string(children), &traced)
		return err == nil
	})
	s := newStopper(nil)
	if err := s.stop([]int{traced}); err != nil {
		t.Fatal(err)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gputest.Eventually(t, "the first process is known to end", func() bool { return dead(pid) })
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(stat), ") Z ") {
		t.Errorf("it has ended already, and so shows nothing: %s, %v", stat, err)
	}
	if err := s.yield(t.Context()); err != nil {
		t.Error(err)
	}
}
