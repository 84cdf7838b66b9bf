package gputest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mib  = 1 << 20
	long = 60 * time.Second // for what takes milliseconds
)

// root is the repository's.
var root = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.Join(err, errors.New("no go.mod above the test"))
})

// build builds the fake driver, the library for containers and the helper, where they are out of date. Tests of several packages do so one after the other.
var build = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return errors.New("not root: the helper may not look into other processes")
	}
	dir, err := root()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return err
	}
	lock, err := os.Create(filepath.Join(dir, "bin", ".gputest"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	libraries := exec.Command("make", "-s", "fakecuda", "preload")
	helper := exec.Command("go", "build", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", Bin("gputest", "cryo-gpu-keeper"), "./cmd/cryo-gpu-keeper")
	helper.Env = append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	for _, c := range []*exec.Cmd{libraries, helper} {
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c, err, out)
		}
	}
	return nil
})

// Bin returns the path of something that was built.
func Bin(parts ...string) string {
	dir, _ := root()
	return filepath.Join(append([]string{dir, "bin"}, parts...)...)
}

// Need builds what the tests run. It skips a test on a laptop without a compiler, and fails it in CI.
func Need(t testing.TB) {
	t.Helper()
	switch err := build(); {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// Host has fake devices.
type Host struct {
	t       testing.TB
	Dir     string   // a directory for each device, and the orders
	Devices []string // UUIDs
	Wrapper string   // starts programs; empty: nothing does
	Env     []string // of programs, beside what all have
}

var hosts atomic.Int32

// New makes devices of so many MiB each. Their UUIDs are those of no other test: NVML finds the users of a device by it, among all processes.
func New(t testing.TB, sizes ...int) *Host {
	t.Helper()
	Need(t)
	h := &Host{t: t, Dir: filepath.Join(t.TempDir(), "gpu")}
	memory(t, h.Dir)
	number := hosts.Add(1)
	var list strings.Builder
	for i, size := range sizes {
		uuid := fmt.Sprintf("GPU-%08x-%04x-4000-8000-%012x", i+1, number&0xffff, os.Getpid())
		h.Devices = append(h.Devices, uuid)
		h.Write(filepath.Join(uuid, "total"), fmt.Sprint(size*mib))
		fmt.Fprintf(&list, "%s %d Fake_H%d 9.0 %d\n", uuid, i, i, size*mib)
	}
	h.Write("devices", list.String())
	h.Order()
	return h
}

// memory mounts a tmpfs with huge pages at dir. The files there are device memory, which tests fill, compare and free all the time. If it cannot be mounted, they lie on the disk, and
// tests take longer.
func memory(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if unix.Mount("gputest", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,huge=always") == nil {
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // else the next boot does it
	}
}

// Write writes a file of the fake driver's.
func (h *Host) Write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.Dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		h.t.Fatal(err)
	}
}

// Order replaces the orders, which say what calls of the driver come to: see integration/fakecuda/orders.h.
func (h *Host) Order(lines ...string) {
	h.t.Helper()
	h.Write("orders", strings.Join(lines, "\n")+"\n")
}

// Files counts the allocations on a device.
func (h *Host) Files(device int) int {
	h.t.Helper()
	names, err := filepath.Glob(filepath.Join(h.Dir, h.Devices[device], "mem-*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return len(names)
}

// variables are those of processes that use the driver.
func (h *Host) variables() []string {
	return []string{
		"FAKECUDA_DIR=" + h.Dir, "FAKECUDA_DEVICES=" + filepath.Join(h.Dir, "devices"),
		"FAKECUDA_ORDERS=" + filepath.Join(h.Dir, "orders"), "FAKECUDA_LOG=" + filepath.Join(h.Dir, "log"),
	}
}

// Helper returns the path of a program that starts the helper with the fake driver of the host, and more variables.
func (h *Host) Helper(more ...string) string {
	h.t.Helper()
	text := "#!/bin/sh\n"
	for _, v := range append(append(h.variables(), "LD_LIBRARY_PATH="+Bin("fakecuda"), "CUDA_VISIBLE_DEVICES=none"), more...) {
		text += "export '" + v + "'\n"
	}
	path := filepath.Join(h.t.TempDir(), "cryo-gpu-keeper")
	Script(h.t, path, text+"exec "+Bin("gputest", "cryo-gpu-keeper")+" \"$@\"\n")
	return path
}

// Script writes a program. Nothing is started meanwhile: a process that has not got as far as exec would have the file open, and the kernel executes no such one.
func Script(t testing.TB, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Eventually waits for what another process does by itself.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > long {
			t.Fatal("not in time: " + what)
		}
	}
}
