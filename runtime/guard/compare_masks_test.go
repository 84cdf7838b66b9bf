package guard

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// apart starts a process in a mount namespace of its own, in which a script has mounted something. It has a file open as descriptor 9, if there is one.
func apart(t *testing.T, script, open string) (pid int, v view) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	if open != "" {
		script += "\nexec 9<" + open
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-ec", script+"\nexec sleep 60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid)); err == nil && string(name) == "sleep\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the process did not come")
		}
	}
	v, closed, err := viewOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closed)
	return cmd.Process.Pid, v
}

const hide = "mount --bind /dev/null /proc/interrupts; mount -t tmpfs -o ro none /proc/bus; mount -t tmpfs -o ro none /sys/kernel/mm; mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys"

func specifying(masked, readonly []string) *check {
	k := &check{found: map[string]bool{}}
	k.Spec = &specs.Spec{Linux: &specs.Linux{MaskedPaths: masked, ReadonlyPaths: readonly}}
	return k
}

// TestMasks has all of what is hidden hidden; what each host has refused if it is not; and what is of hardware covered.
func TestMasks(t *testing.T) {
	masked, readonly := []string{"/proc/bus", "/proc/interrupts", "/sys/kernel/mm", "/proc/none"}, []string{"/proc/sys", "/proc/fs"}
	_, v := apart(t, hide, "")
	k := specifying(masked, readonly[:1])
	if err := k.masks(v); err != nil || len(k.differences)+len(k.uncovered) > 0 {
		t.Errorf("covered: %v, %v (%v)", k.differences, k.uncovered, err)
	}
	pid, v := apart(t, "true", "")
	k = specifying(masked, readonly)
	if err := k.masks(v); err != nil || len(k.differences) != 3 || len(k.uncovered) != 2 {
		t.Errorf("open: %q, %v (%v)", k.differences, k.uncovered, err)
	}
	k.uncovered = append(k.uncovered, uncovered{pid: pid, path: "/proc/driver"})
	if err := k.cover(); err != nil {
		t.Fatal(err)
	}
	k = specifying(masked[1:3], []string{"/proc/driver"})
	if err := k.masks(v); err != nil || len(k.differences)+len(k.uncovered) > 0 {
		t.Errorf("after it was covered: %v, %v (%v)", k.differences, k.uncovered, err)
	}
	if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/sys/kernel/mm", pid)); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
	if fd, err := within(v.root, "/proc/interrupts"); err != nil {
		t.Error(err)
	} else {
		_ = unix.Close(fd)
	}
	if here, err := os.ReadFile("/proc/interrupts"); err != nil || len(here) == 0 {
		t.Errorf("the host's own is hidden: %v", err)
	}
}

// TestHidden refuses what was opened before it was covered.
func TestHidden(t *testing.T) {
	for script, differs := range map[string]bool{"true": true, hide: false} {
		pid, _ := apart(t, script, "/proc/interrupts")
		k := specifying([]string{"/proc/interrupts"}, nil)
		if err := k.hidden(pid); err != nil || len(k.differences) > 0 != differs || differs && !strings.Contains(k.differences[0], "/proc/interrupts") {
			t.Errorf("%q: %v (%v)", script, k.differences, err)
		}
	}
}

// TestFlags sets the flags of a mount that the specification has.
func TestFlags(t *testing.T) {
	pid, v := apart(t, "mount -t tmpfs none /mnt", "")
	k := specifying(nil, nil)
	wanted := specs.Mount{Destination: "/mnt", Type: "tmpfs", Options: []string{"nosuid", "nodev", "exec"}}
	top := func(v view) *mountinfo.Info {
		return v.mounts[slices.IndexFunc(v.mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == "/mnt" })]
	}
	k.flags(pid, wanted, top(v))
	if len(k.uncovered) != 1 || k.uncovered[0].flags != unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV {
		t.Fatalf("%v", k.uncovered)
	}
	if err := k.cover(); err != nil {
		t.Fatal(err)
	}
	v, closed, err := viewOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer closed()
	k = specifying(nil, nil)
	if k.flags(pid, wanted, top(v)); len(k.uncovered) > 0 || strings.Contains(top(v).Options, "noexec") {
		t.Errorf("%v, %s", k.uncovered, top(v).Options)
	}
}
