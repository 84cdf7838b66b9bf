package integration

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadSweep kills the command while CRIU restores. The restore is called off, without another command: what is left is a container that never runs, or one that is whole and
// runs.
func TestBadSweep(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "64")
	id := name(t)
	before := trace(t, a)
	for range breaks {
		ended := make(chan lab.Result, 1)
		c := a.Command(t.Context(), "cryo", "restore", ref, "--name", id, "--eager")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = c.Wait()
			ended <- lab.Result{}
		}()
		if find(t, a, dumping(a)) == 0 {
			t.Fatal("no restore")
		}
		time.Sleep(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
		kill(t, c.Process.Pid)
		<-ended
		swept := func() bool {
			work, err := os.ReadDir(filepath.Join(a.CryoRoot(), "work"))
			return err == nil && len(work) == 0
		}
		eventually(t, "sweeping", 20*time.Second, swept)
		if _, status, err := a.Task(t.Context(), id); err == nil && status == "RUNNING" {
			counts(t, a, id)
		}
		remove(t.Context(), a, id)
		next(t, a)
		wantTrace(t, a, before)
	}
}

// next runs a cryo command. It removes what a killed command has left: a lease, and the container of a trial.
func next(t *testing.T, h *lab.Host) {
	t.Helper()
	refusal(t, h.Cryo(t.Context(), "restore", "cryo.test/none:1", "--pull", "never"), codeNotFound, "")
}

// TestBadSweepPart has a file in the directory of a killed command's restore process that cannot be removed for a while, as where CRIU writes another: the next command removes it.
func TestBadSweepPart(t *testing.T) {
	a, _ := pair(t)
	ref := snapshotOf(t, a, "count", "--memory", "64")
	id := name(t)
	before := trace(t, a)
	work := filepath.Join(a.CryoRoot(), "work")
	c, criu := stoppedRestore(t, a, "restore", ref, "--name", id, "--eager")
	found, err := filepath.Glob(filepath.Join(work, "*", "images", "inventory.img"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	immutable(t, found[0], true)
	kill(t, c.Process.Pid)
	_ = c.Wait() // it was killed
	time.Sleep(2 * time.Second)
	immutable(t, found[0], false)
	kill(t, criu)
	calledOff(t, a, id)
	remove(t.Context(), a, id)
	next(t, a)
	wantTrace(t, a, before)
}

// TestBadSweepDelay kills commands while the CRIU of their restores stands still. A restore that begins then is not delayed by more than a second.
func TestBadSweepDelay(t *testing.T) {
	a, _ := pair(t)
	ref, id := snapshotOf(t, a, "count", "--memory", "64"), name(t)
	other := id + "-next"
	cleanup(t, a, other)
	before := trace(t, a)
	restore := func() time.Duration {
		begin := time.Now()
		must(t, a.Cryo(t.Context(), "restore", ref, "--name", other, "--eager"))
		took := time.Since(begin)
		counts(t, a, other)
		remove(t.Context(), a, other)
		return took
	}
	usual := max(restore(), restore())
	for range 3 {
		c, _ := stoppedRestore(t, a, "restore", ref, "--name", id, "--eager")
		kill(t, c.Process.Pid)
		_ = c.Wait() // it was killed
		took := restore()
		t.Logf("usually it takes %s, after a killed command %s", usual, took)
		if took > usual+time.Second {
			t.Errorf("a restore after a killed command takes %s, usually %s", took, usual)
		}
		remove(t.Context(), a, id)
		next(t, a)
		wantTrace(t, a, before)
	}
}

// immutable sets or clears the flag with which nobody removes a file (ioctl_iflags(2)).
func immutable(t *testing.T, path string, on bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		t.Fatal(err)
	}
	const isImmutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	flags &^= isImmutable
	if on {
		flags |= isImmutable
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		t.Fatal(err)
	}
}
