package lab

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GPUs are what a host has for the fake driver of integration/fakecuda.
type GPUs struct {
	Driver  string // version; "": 580.159.04
	UVM     int    // major number of /dev/nvidia-uvm, which differs between hosts; 0: 511
	Devices []GPU
}

// GPU is one of them. The zero value is an H200 with 1 GiB and the number 0.
type GPU struct {
	Minor        int    // of /dev/nvidiaN
	Architecture string // "": 9.0
	Memory       int64  // bytes; 0: 1 GiB
	MIG          bool
	Number       string // by which drivers that were moved still know it; "": it is found wherever it is
}

// GPUDir is where a host's programs find the memory of its GPUs, and GPUMount where those of its containers do.
const (
	GPUDir   = "/run/gpu"
	GPUMount = "/dev/fakegpu"
)

// nvidiaMajor is that of /dev/nvidiaN and /dev/nvidiactl. Source: Linux, Documentation/admin-guide/devices.txt.
const nvidiaMajor = 195

// UUID is that of the host's GPU with an index.
func (h *Host) UUID(index int) string {
	sum := sha256.Sum256([]byte(h.Dir + "/" + strconv.Itoa(index)))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// gpuEnv is the environment in which the helper finds the fake driver.
func (h *Host) gpuEnv() []string {
	if h.options.GPUs == nil {
		return nil
	}
	return []string{
		"LD_LIBRARY_PATH=" + h.lab.Tool("fakecuda"), "FAKECUDA_DIR=" + GPUDir, "FAKECUDA_DEVICES=" + filepath.Join(h.Dir, "gpus"),
		"FAKECUDA_ORDERS=" + filepath.Join(h.Dir, "gpu-orders"), "FAKECUDA_LOG=" + filepath.Join(h.Dir, "gpu-calls"),
		"CRYO_GPU_TEST_DRIVER=1", // its memory has descriptors of files
	}
}

// SetGPUs makes the host's GPUs others: device nodes in its /dev, their memory, what the driver tells, and the CDI file that
// names them nvidia.com/gpu=0 and so on, and all.
func (h *Host) SetGPUs(g GPUs) error {
	if g.Driver == "" {
		g.Driver = "580.159.04"
	}
	if g.UVM == 0 {
		g.UVM = 511
	}
	known := "driver " + g.Driver + "\n"
	// The last two can be opened here: by them the fake driver has device files that CRIU cannot dump (/dev/fuse), and mappings (/dev/zero).
	nodes := map[string]uint64{"nvidiactl": unix.Mkdev(nvidiaMajor, 255), "nvidia-uvm": unix.Mkdev(uint32(g.UVM), 0), "nvidia-modeset": unix.Mkdev(10, 229), "nvidia-uvm-tools": unix.Mkdev(1, 5)}
	for i, d := range g.Devices {
		if d.Architecture == "" {
			d.Architecture = "9.0"
		}
		if d.Memory == 0 {
			d.Memory = 1 << 30
		}
		nodes["nvidia"+strconv.Itoa(d.Minor)] = unix.Mkdev(nvidiaMajor, uint32(d.Minor))
		last := ""
		if d.MIG {
			last = " mig"
		}
		known += fmt.Sprintf("%s %d NVIDIA_H200 %s %d%s\n", h.UUID(i), d.Minor, d.Architecture, d.Memory, last)
		dir := filepath.Join(h.Dir, GPUDir, h.UUID(i))
		err := errors.Join(os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, "total"), []byte(strconv.FormatInt(d.Memory, 10)), 0o666),
			os.WriteFile(filepath.Join(dir, "minor"), []byte(strconv.Itoa(d.Minor)), 0o666))
		if number := filepath.Join(dir, "number"); d.Number != "" {
			err = errors.Join(err, os.WriteFile(number, []byte(d.Number), 0o666))
		} else if gone := os.Remove(number); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		if err != nil {
			return fmt.Errorf("make GPU: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(h.Dir, "gpus"), []byte(known), 0o600); err != nil {
		return fmt.Errorf("make GPUs: %w", err)
	}
	if err := h.makeNodes(nodes); err != nil {
		return err
	}
	return h.writeCDI(g)
}

// makeNodes replaces the driver's device nodes in the host's own /dev, see host.sh.
func (h *Host) makeNodes(nodes map[string]uint64) error {
	dev := filepath.Join("/proc", strconv.Itoa(h.Pid()), "root/dev")
	old, err := filepath.Glob(filepath.Join(dev, "nvidia*"))
	for _, path := range old {
		err = errors.Join(err, os.Remove(path))
	}
	for name, number := range nodes {
		path := filepath.Join(dev, name)
		err = errors.Join(err, unix.Mknod(path, unix.S_IFCHR|0o666, int(number)), os.Chmod(path, 0o666))
	}
	if err != nil {
		return fmt.Errorf("make device nodes: %w", err)
	}
	return nil
}

// writeCDI writes what nvidia-ctk would: source: the CDI specification, version 0.6.0.
func (h *Host) writeCDI(g GPUs) error {
	type object = map[string]any
	var devices, all []object
	for i, d := range g.Devices {
		node := object{"path": "/dev/nvidia" + strconv.Itoa(d.Minor)}
		all = append(all, node)
		devices = append(devices, object{"name": strconv.Itoa(i), "containerEdits": object{"deviceNodes": []object{node}}})
	}
	if len(devices) == 0 {
		return os.RemoveAll(h.cdiFile())
	}
	devices = append(devices, object{"name": "all", "containerEdits": object{"deviceNodes": all}})
	bind := []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}
	content, err := json.Marshal(object{
		"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices,
		"containerEdits": object{
			"env":         []string{"NVIDIA_VISIBLE_DEVICES=void"},
			"deviceNodes": []object{{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}, {"path": "/dev/nvidia-modeset"}, {"path": "/dev/nvidia-uvm-tools"}},
			"hooks":       []object{{"hookName": "createContainer", "path": "/bin/true", "args": []string{"true", "update-ldcache"}}},
			"mounts": []object{
				{"hostPath": h.DriverLibrary(), "containerPath": "/usr/lib64/libcuda.so.1", "options": bind},
				{"hostPath": h.NVMLLibrary(), "containerPath": "/usr/lib64/libnvidia-ml.so.1", "options": bind},
				{"hostPath": GPUDir, "containerPath": GPUMount, "options": []string{"rw", "nosuid", "nodev", "rbind", "rprivate"}},
			},
		},
	})
	if err != nil {
		return fmt.Errorf("encode CDI file: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(h.cdiFile()), 0o755); err != nil {
		return fmt.Errorf("write CDI file: %w", err)
	}
	if err := os.WriteFile(h.cdiFile(), content, 0o644); err != nil {
		return fmt.Errorf("write CDI file: %w", err)
	}
	return nil
}

// cdiFile is in the host's own /var/run/cdi, which every CDI client looks into.
func (h *Host) cdiFile() string { return filepath.Join(h.Dir, "run/cdi/nvidia.json") }

// DriverLibrary is the fake driver's, which containers get as /usr/lib64/libcuda.so.1.
func (h *Host) DriverLibrary() string { return filepath.Join(h.lab.Tool("fakecuda"), "libcuda.so.1") }

// NVMLLibrary is the fake NVML, which containers get as /usr/lib64/libnvidia-ml.so.1.
func (h *Host) NVMLLibrary() string {
	return filepath.Join(h.lab.Tool("fakecuda"), "libnvidia-ml.so.1")
}

// Order makes the driver's calls on this host fail from now on, see integration/fakecuda; no orders end those there were.
func (h *Host) Order(orders ...string) error {
	text := strings.Join(orders, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(h.Dir, "gpu-orders"), []byte(text), 0o600); err != nil {
		return fmt.Errorf("give orders: %w", err)
	}
	return nil
}

// OwnOrders has calls fail that programs in containers make for themselves, of those that have [OwnOrdersEnv] in their environment.
func (h *Host) OwnOrders(orders ...string) error {
	text := strings.Join(orders, "\n") + "\n"
	path := filepath.Join(h.Dir, GPUDir, ownOrders)
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o666), os.Chmod(path, 0o666)); err != nil {
		return fmt.Errorf("give orders: %w", err)
	}
	return nil
}

const ownOrders = "orders"

// OwnOrdersEnv is the environment of a container whose programs heed [Host.OwnOrders].
const OwnOrdersEnv = "FAKECUDA_ORDERS=" + GPUMount + "/" + ownOrders

// OwnOrdersDone tells how many of them have been carried out.
func (h *Host) OwnOrdersDone() (done int, err error) {
	content, err := os.ReadFile(filepath.Join(h.Dir, GPUDir, ownOrders))
	if err != nil {
		return 0, fmt.Errorf("look at orders: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "#") {
			done++
		}
	}
	return done, nil
}

// Orders gives how many orders have been carried out and how many have not.
func (h *Host) Orders() (done, open int, err error) {
	content, err := os.ReadFile(filepath.Join(h.Dir, "gpu-orders"))
	if err != nil {
		return 0, 0, fmt.Errorf("look at orders: %w", err)
	}
	for _, line := range strings.Fields(strings.ReplaceAll(string(content), " ", "_")) {
		if strings.HasPrefix(line, "#") {
			done++
		} else {
			open++
		}
	}
	return done, open, nil
}

// GPUCalls lists the driver's calls on this host since it was last asked: "lock PID RESULT".
func (h *Host) GPUCalls() ([]string, error) {
	path := filepath.Join(h.Dir, "gpu-calls")
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at calls: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(content)), "\n"), os.Remove(path)
}

// GPUsOf gives the numbers N of the nodes /dev/nvidiaN that a process sees, and of those below 8 that its cgroup lets it use: nil under the second version of
// cgroups, which keeps no list. Both are sorted.
func GPUsOf(pid int) (seen, allowed []int, err error) {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/dev/nvidia[0-9]*", pid)) // the pattern is well formed
	for _, p := range paths {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(p), "nvidia"))
		if err != nil {
			return nil, nil, fmt.Errorf("read the GPUs of process %d: %w", pid, err)
		}
		seen = append(seen, n)
	}
	slices.Sort(seen)
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, nil, fmt.Errorf("read the GPUs of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(cgroups)) {
		_, at, found := strings.Cut(strings.TrimSpace(line), ":devices:")
		if !found {
			continue
		}
		rules, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/devices", at, "devices.list"))
		if err != nil {
			return nil, nil, fmt.Errorf("read the GPUs of process %d: %w", pid, err)
		}
		allowed = []int{}
		for n := range 8 {
			if strings.Contains(string(rules), fmt.Sprintf("c %d:%d rw", nvidiaMajor, n)) {
				allowed = append(allowed, n)
			}
		}
	}
	return seen, allowed, nil
}
