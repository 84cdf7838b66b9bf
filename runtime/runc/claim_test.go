package runc

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// claimed makes a cgroup for a restore, and removes what is left of it after the test.
func claimed(t *testing.T) (c *Claim, bundle string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("cgroups are root's")
	}
	bundle = t.TempDir()
	c, err := MakeClaim(bundle, "/cryo-test-"+rand.Text())
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range c.dirs() {
			for deadline := time.Now().Add(5 * time.Second); unix.Rmdir(dir) == unix.EBUSY && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
	return c, bundle
}

// join puts a process into the cgroup, in all hierarchies that take it.
func join(t *testing.T, c *Claim, pid int) {
	t.Helper()
	in := 0
	for _, dir := range c.dirs() {
		if write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)) == nil { // a cpuset takes none at first
			in++
		}
	}
	if in == 0 {
		t.Fatal("no cgroup takes a process")
	}
}

// child starts a process of this one.
func child(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	return cmd.Process.Pid
}

// stranger starts a process that does not come from this one any more.
func stranger(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	if parent, err := Parent(pid); err != nil || parent == os.Getpid() {
		t.Fatalf("its parent is %d: %v", parent, err)
	}
	return pid
}

// settled calls end until it has no error.
func settled(t *testing.T, end func() error) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := end()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func exists(c *Claim) (n int) {
	for _, dir := range c.dirs() {
		if _, err := os.Stat(dir); err == nil {
			n++
		}
	}
	return n
}

// TestClaimEnd ends what an attempt has started, and removes what it has made.
func TestClaimEnd(t *testing.T) {
	c, bundle := claimed(t)
	if exists(c) != len(c.dirs()) || len(c.dirs()) == 0 {
		t.Fatalf("%d of %d made", exists(c), len(c.dirs()))
	}
	pid := child(t)
	join(t, c, pid)
	settled(t, c.End)
	if !Ended(pid) || exists(c) != 0 {
		t.Errorf("ended: %v, %d directories are left", Ended(pid), exists(c))
	}
	if _, err := os.Stat(filepath.Join(bundle, claimFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is left: %v", err)
	}
}

// TestClaimOthers leaves a process alone that another has put into the cgroup meanwhile, and the cgroup, from then on.
func TestClaimOthers(t *testing.T) {
	c, bundle := claimed(t)
	own, other := child(t), stranger(t)
	join(t, c, own)
	join(t, c, other)
	record, err := os.ReadFile(filepath.Join(bundle, claimFile))
	if err != nil {
		t.Fatal(err)
	}
	settled(t, c.End)
	if err := os.WriteFile(filepath.Join(bundle, claimFile), record, 0o600); err != nil {
		t.Fatal(err)
	}
	settled(t, func() error { return EndClaim(bundle) })
	if !Ended(own) || Ended(other) || exists(c) == 0 {
		t.Errorf("own ended: %v, the other ended: %v, %d directories", Ended(own), Ended(other), exists(c))
	}
}

// TestClaimThere does not remove a cgroup that was there before, nor one with processes.
func TestClaimThere(t *testing.T) {
	c, _ := claimed(t)
	again, err := MakeClaim(t.TempDir(), c.of.Group)
	if err != nil {
		t.Fatal(err)
	}
	settled(t, again.End)
	if exists(c) != len(c.dirs()) {
		t.Errorf("%d of %d are left", exists(c), len(c.dirs()))
	}
	pid := child(t)
	join(t, c, pid)
	if _, err := MakeClaim(t.TempDir(), c.of.Group); !errdefs.IsFailedPrecondition(err) || Ended(pid) {
		t.Errorf("%v; ended: %v", err, Ended(pid))
	}
	settled(t, c.End)
}

// TestClaimDead ends what the attempt of a dead process has started, and nothing that was there before.
func TestClaimDead(t *testing.T) {
	before := stranger(t)
	time.Sleep(50 * time.Millisecond)
	c, bundle := claimed(t)
	time.Sleep(50 * time.Millisecond)
	since := stranger(t)
	join(t, c, since)
	settled(t, func() error { return EndClaim(bundle) })
	if !Ended(since) || exists(c) != 0 {
		t.Errorf("ended: %v, %d directories are left", Ended(since), exists(c))
	}
	c, bundle = claimed(t)
	join(t, c, before)
	settled(t, func() error { return EndClaim(bundle) })
	if Ended(before) || exists(c) == 0 {
		t.Errorf("ended: %v, %d directories", Ended(before), exists(c))
	}
	_ = unix.Kill(before, unix.SIGKILL) // so that the cgroup can be removed
	if err := EndClaim(t.TempDir()); err != nil {
		t.Errorf("without an attempt: %v", err)
	}
}

// TestClaimKeep keeps the directories with processes, and no record.
func TestClaimKeep(t *testing.T) {
	c, bundle := claimed(t)
	pid, used := child(t), c.dirs()[0]
	for _, dir := range c.dirs() {
		if write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)) == nil {
			used = dir
			break
		}
	}
	if err := c.Keep(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(used); err != nil || exists(c) != 1 || Ended(pid) {
		t.Errorf("%v; %d directories; ended: %v", err, exists(c), Ended(pid))
	}
	if err := EndClaim(bundle); err != nil || Ended(pid) {
		t.Errorf("after it was kept: %v; ended: %v", err, Ended(pid))
	}
}

// TestClaimAbsent: cgroups that CRIU's images name are removed after an attempt, unless they were there before or have processes.
func TestClaimAbsent(t *testing.T) {
	first, _ := claimed(t)
	other := first.of.Group + "-other"
	for _, root := range first.roots {
		_ = os.Mkdir(filepath.Join(root, other), 0o755) // some hierarchies are read-only
		t.Cleanup(func() { _ = os.Remove(filepath.Join(root, other)) })
	}
	bundle := t.TempDir()
	fresh := other + "/new"
	c, err := MakeClaim(bundle, first.of.Group, first.of.Group, other, fresh, fresh+"/below")
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, root := range c.roots {
		if os.MkdirAll(filepath.Join(root, fresh, "below"), 0o755) == nil {
			made++
		}
	}
	if made == 0 {
		t.Skip("no cgroup can be made")
	}
	if err := EndClaim(bundle); err != nil { // by what is written down
		t.Fatal(err)
	}
	for _, root := range c.roots {
		if _, err := os.Lstat(filepath.Join(root, fresh)); err == nil {
			t.Errorf("%s is left in %s", fresh, root)
		}
	}
	for _, group := range []string{first.of.Group, other} {
		if !slices.ContainsFunc(c.roots, func(root string) bool { _, err := os.Lstat(filepath.Join(root, group)); return err == nil }) {
			t.Errorf("%s was there before, and is gone", group)
		}
	}
}
