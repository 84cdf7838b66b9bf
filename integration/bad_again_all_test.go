package integration

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadAgain kills cryo restore while CRIU is stopped. The command leaves a container that never runs, as ctr run does. Its name is taken until a user removes it.
func TestBadAgain(t *testing.T) {
	a, _ := pair(t)
	ref, id := snapshotOf(t, a, "count", "--memory", "16"), name(t)
	cleanup(t, a, id)
	args := []string{"restore", ref, "--name", id, "--eager"}
	c, criu := stoppedRestore(t, a, args...)
	exists := func(what string) {
		t.Helper()
		if r := a.Cryo(t.Context(), args...); r.Code != codeExists || !strings.Contains(r.Stderr, "remove that one first") {
			t.Errorf("%s: exit %d\n%s", what, r.Code, r.Stderr)
		}
	}
	exists("beside another")
	kill(t, c.Process.Pid)
	_ = c.Wait() // it was killed
	if err := unix.Kill(criu, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the restore process", 10*time.Second, func() bool { return len(restorers(t, a)) == 0 })
	eventually(t, "the end of CRIU", 10*time.Second, func() bool { return !slices.ContainsFunc(processes(t, a), dumping(a)) })
	if _, status, err := a.Task(t.Context(), id); err != nil || status == "RUNNING" {
		t.Errorf("the container is %s, %v", status, err)
	}
	exists("after a killed command")
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), args...))
	counts(t, a, id)
	exists("a complete container")
}

// stoppedRestore begins a restore, and stops its CRIU.
func stoppedRestore(t *testing.T, h *lab.Host, args ...string) (command *exec.Cmd, criu int) {
	t.Helper()
	command = h.Command(t.Context(), "cryo", args...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if criu = find(t, h, dumping(h)); criu == 0 {
		t.Fatal("no restore")
	}
	if err := unix.Kill(criu, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return command, criu
}

// calledOff waits until the restore of a command that was killed is called off, and reports whether the container runs instead.
func calledOff(t *testing.T, h *lab.Host, id string) (runs bool) {
	t.Helper()
	eventually(t, "the end of the restore", 30*time.Second, func() bool {
		_, status, err := h.Task(t.Context(), id)
		runs = err == nil && status == "RUNNING"
		return runs || err == nil && len(restorers(t, h)) == 0
	})
	return runs
}

// TestBadOtherDevice kills a trial, all of it, and has its store on another device and with other inodes afterwards, as where a host has booted: the next command
// removes what it has left.
func TestBadOtherDevice(t *testing.T) {
	a, _ := pair(t)
	id, root := name(t), ownRoot(t, a)
	cleanup(t, a, id)
	startImage(t, a, shared.image, id, nil, "workload", "count", "--memory", "16")
	await(t, a, id)
	c := a.Command(t.Context(), "cryo", "--root", root, "checkpoint", id, "again/device:1", "--verify")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	criu := find(t, a, func(p process) bool { // and stop it: it may end as soon as it is found
		dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
		return err == nil && isCRIU(p) && strings.HasPrefix(dir, root+"/") && len(restorers(t, a)) > 0 && unix.Kill(p.pid, unix.SIGSTOP) == nil
	})
	if criu == 0 {
		t.Fatal("no trial")
	}
	for _, pid := range append(senders(t, a), append(restorers(t, a), c.Process.Pid)...) { // the checkpoint process undoes a trial that fails
		kill(t, pid)
	}
	_ = c.Wait() // it was killed
	old := root + "-old"
	if err := os.Rename(root, old); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(old)
	eventually(t, "a copy of the store", 10*time.Second, func() bool { // the shim may remove of it what it knows the path of
		out, err := exec.Command("cp", "-aT", old, root).CombinedOutput()
		if err != nil {
			t.Logf("%v: %s", err, out)
		}
		return err == nil
	})
	_ = unix.Kill(criu, unix.SIGKILL) // its shim may have ended it
	trial := func() bool {
		return strings.Contains(must(t, a.Ctr(t.Context(), "containers", "ls", "--quiet")).Stdout, "cryo-verify-")
	}
	if !trial() {
		t.Fatal("nothing was left")
	}
	refusal(t, a.Cryo(t.Context(), "--root", root, "restore", "again/none:1", "--pull", "never"), codeNotFound, "")
	if trial() {
		t.Error("the trial's container is left")
	}
}
