package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// tree is a /proc of a test's own.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) tree {
	t.Helper()
	tr := tree{t, t.TempDir()}
	tr.write("proc/meminfo", "MemTotal:       200000000 kB\nMemAvailable:   100000000 kB\n")
	tr.write("sys/module/nvidia/version", "580.159.04\n")
	return tr
}

func (tr tree) write(path, text string) {
	tr.t.Helper()
	path = filepath.Join(tr.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) link(path, target string) {
	tr.t.Helper()
	path = filepath.Join(tr.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		tr.t.Fatal(err)
	}
}

const (
	plainMaps = "00400000-00401000 r-xp 00000000 00:31 1234   /usr/bin/app\n7ffc0000-7ffc1000 rw-p 00000000 00:00 0   [stack]\n"
	cudaMaps  = plainMaps + "7f000000-7f001000 r-xp 00000000 00:31 4321   /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04\n"
	ncclMaps  = cudaMaps + "7e000000-7e001000 r-xp 00000000 00:31 4322   /usr/lib/libnccl.so.2\n"
)

// process adds one that has mapped libcuda.
func (tr tree) process(pid int) {
	tr.t.Helper()
	dir := fmt.Sprintf("proc/%d/", pid)
	tr.write(dir+"comm", "app\n")
	tr.write(dir+"status", fmt.Sprintf("Name:\tapp\nNSpid:\t%d\t%d\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n", pid, pid-100))
	tr.write(dir+"stat", fmt.Sprintf("%d (app) S 1 1 1 0 -1 4194304 0", pid))
	tr.write(dir+"maps", cudaMaps)
	tr.write(dir+"environ", "PATH=/bin\x00")
	tr.write(dir+"cgroup", "0::/c\n")
	tr.link(dir+"ns/ipc", "ipc:[1]")
	tr.link(dir+"fd/3", "/dev/nvidia0")
}

// end makes a process end.
func (tr tree) end(pid int) {
	tr.t.Helper()
	if err := os.RemoveAll(filepath.Join(tr.root, "proc", strconv.Itoa(pid))); err != nil {
		tr.t.Fatal(err)
	}
}

const (
	uuidA = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	uuidB = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
)

// world is a host's /proc, and what the driver says of its processes.
type world struct {
	tree
	facts device.Facts
	books library.Books // of all processes; the zero value: their libraries have none
}

func newWorld(t *testing.T, pids ...int) *world {
	t.Helper()
	w := &world{tree: newTree(t)}
	w.facts = device.Facts{Driver: "580.159.04", CUDA: 13000, Devices: []device.Device{
		{UUID: uuidA, Index: 0, Minor: 0, Name: "H200", Architecture: "9.0", Memory: 140 << 30, Free: 100 << 30},
		{UUID: uuidB, Index: 1, Minor: 1, Name: "H200", Architecture: "9.0", Memory: 140 << 30, Free: 100 << 30},
	}}
	for _, pid := range pids {
		w.process(pid)
		w.facts.Uses = append(w.facts.Uses, device.DeviceUse{PID: pid, UUID: uuidA, Memory: 1 << 30})
	}
	return w
}
