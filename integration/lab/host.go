package lab

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"
)

//go:embed host.sh
var hostScript []byte

// HostOptions differ between hosts. The zero value is right for most.
type HostOptions struct {
	Path       []string // directories searched before the others, for programs that are to be replaced
	Env        []string // further environment of the daemon and of every command
	NoCRIU     bool     // criu is not in PATH
	Unified    bool     // cgroup v2 alone also where the machine has v1, then with few controllers or none
	Config     string   // TOML appended to containerd's configuration
	CryoConfig string   // content of the file CRYO_CONFIG names
	GPUs       *GPUs    // with the fake driver, which "make fakecuda" builds; nil: the host has none, and no such driver
	Node       *Node    // what a node of Kubernetes has beyond that; nil: the host is none
}

// Host is a machine as far as its programs can tell: see the package comment.
type Host struct {
	Name    string
	Dir     string // everything of it
	Address string // IPv4 address on the lab's bridge

	lab     *Lab
	options HostOptions
	init    *exec.Cmd // holds the namespaces

	unmountRun func() error // nil: the host has not mounted its /run

	mu       sync.Mutex
	daemon   *daemon    // guarded by mu; nil while stopped
	programs []*Program // guarded by mu; some may have ended
}

// daemon is a running containerd and the news of its end.
type daemon struct {
	command *exec.Cmd
	done    chan struct{}
}

// Host starts a host with its containerd.
func (l *Lab) Host(ctx context.Context, name string, o HostOptions) (*Host, error) {
	l.mu.Lock()
	l.addresses++
	h := &Host{Name: name, Dir: filepath.Join(l.Dir, name), Address: l.instance.address(l.addresses), lab: l, options: o}
	l.hosts = append(l.hosts, h)
	l.mu.Unlock()
	if err := h.boot(ctx); err != nil {
		return nil, fmt.Errorf("start host %s: %w", name, err)
	}
	return h, nil
}

func (h *Host) boot(ctx context.Context) error {
	for _, dir := range []string{"containerd", "opt", "run", "tmp", "xdg", "cryo", "home", "logs"} {
		if err := os.MkdirAll(filepath.Join(h.Dir, dir), 0o711); err != nil {
			return fmt.Errorf("make host directory: %w", err)
		}
	}
	if err := h.mountRun(); err != nil {
		return err
	}
	if err := h.writeConfig(); err != nil {
		return err
	}
	if err := h.makeNamespaces(); err != nil {
		return err
	}
	if err := h.plug(ctx); err != nil {
		return err
	}
	if h.options.GPUs != nil {
		if _, err := os.Stat(h.DriverLibrary()); err != nil {
			return &MissingError{"no fake driver in " + filepath.Dir(h.DriverLibrary()), "run: make fakecuda"}
		}
		if err := h.SetGPUs(*h.options.GPUs); err != nil {
			return err
		}
	}
	return h.StartDaemon(ctx)
}

// runDir is the host's /run.
func (h *Host) runDir() string { return filepath.Join(h.Dir, "run") }

// mountRun has /run in memory, as distributions have it: CRIU keeps what it knows of the kernel only there. One that is already is left to who has mounted it.
func (h *Host) mountRun() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(h.runDir(), &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		return err
	}
	if err := unix.Mount("cryo-lab", h.runDir(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711"); err != nil {
		return fmt.Errorf("mount the host's /run: %w", err)
	}
	h.unmountRun = func() error {
		return os.NewSyscallError("unmount "+h.runDir(), unix.Unmount(h.runDir(), unix.MNT_DETACH))
	}
	return nil
}

// makeNamespaces starts the init process and waits until it has settled.
func (h *Host) makeNamespaces() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	cgroup := filepath.Join(h.lab.instance.name(), h.Name)
	for _, hi := range all {
		if err := hi.make(filepath.Join(hi.mount, cgroup)); err != nil {
			return err
		}
	}
	script := filepath.Join(h.Dir, "host.sh")
	if err := os.WriteFile(script, hostScript, 0o700); err != nil {
		return fmt.Errorf("write host script: %w", err)
	}
	layout := "machine"
	if h.options.Unified {
		layout = "unified"
	}
	dev := "machine"
	if h.options.GPUs != nil {
		dev = "own"
	}
	args := []string{script, "join", cgroup, h.runDir(), layout, dev}
	if h.options.Node != nil {
		if err := h.furnish(); err != nil {
			return err
		}
		args = append(args, h.nodeDir(), h.Name)
	}
	h.init = exec.Command("sh", args...)
	h.init.Dir = "/"
	h.init.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := h.init.StdoutPipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	var stderr strings.Builder
	h.init.Stderr = &stderr
	if err := h.init.Start(); err != nil {
		return fmt.Errorf("start init: %w", err)
	}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("make namespaces: %w: %s", errors.Join(h.init.Process.Kill(), h.init.Wait()), stderr.String())
	}
	var list strings.Builder
	for _, hi := range all {
		fmt.Fprintln(&list, filepath.Join(hi.mount, cgroup, "daemon/cgroup.procs"))
	}
	if err := os.WriteFile(h.memberships(), []byte(list.String()), 0o600); err != nil {
		return fmt.Errorf("write list of cgroups: %w", err)
	}
	return nil
}

// memberships is a file with the cgroup.procs of the host's programs.
func (h *Host) memberships() string { return filepath.Join(h.Dir, "cgroups") }

// plug connects the host to the bridge.
func (h *Host) plug(ctx context.Context) error {
	in, pid, port := h.lab.instance, strconv.Itoa(h.init.Process.Pid), h.port()
	for _, args := range [][]string{
		{"link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pid},
		{"link", "set", port, "master", in.name(), "up"},
	} {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"ip", "address", "add", h.Address + "/24", "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
	} {
		if r := h.Run(ctx, args...); r.Err() != nil {
			return r.Err()
		}
	}
	return nil
}

// Pid is that of the host's init: /proc/PID/root is the host's view of the file system, /proc/PID/ns its namespaces.
func (h *Host) Pid() int { return h.init.Process.Pid }

// Socket is containerd's socket as seen from outside the host; inside it is the default address.
func (h *Host) Socket() string { return filepath.Join(h.Dir, "run/containerd/containerd.sock") }

// CryoRoot is cryo's store and working directories, CRYO_ROOT.
func (h *Host) CryoRoot() string { return filepath.Join(h.Dir, "cryo") }

// Log is the file that containerd and the shims log to.
func (h *Host) Log() string { return filepath.Join(h.Dir, "containerd.log") }

// Client connects to the host's containerd, with namespace "default". Who makes FIFOs for a task through it must put
// them below [Host.Dir] (cio.WithFIFODir): /run inside is another than outside.
func (h *Host) Client() (*containerd.Client, error) {
	c, err := containerd.New(h.Socket(), containerd.WithDefaultNamespace("default"), containerd.WithTimeout(10*time.Second))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd of %s: %w", h.Name, err)
	}
	return c, nil
}

// Close ends the host and all that runs on it; [Lab.Close] does it for those still up. What is left in its directory
// goes with the lab.
func (h *Host) Close() error {
	h.lab.mu.Lock()
	for i, other := range h.lab.hosts {
		if other == h {
			h.lab.hosts = append(h.lab.hosts[:i:i], h.lab.hosts[i+1:]...)
			break
		}
	}
	h.lab.mu.Unlock()
	return h.stop()
}

// Reboot ends all that runs on the host at once, as a reset does, and boots it again. Its directory stays, but for what is in
// memory or is emptied at a boot: /run and temporary files. off is called while nothing runs on it; nil: nothing is to be done then.
func (h *Host) Reboot(ctx context.Context, off func() error) error {
	if err := h.stop(); err != nil {
		return err
	}
	if off != nil {
		if err := off(); err != nil {
			return fmt.Errorf("reboot host %s: %w", h.Name, err)
		}
	}
	h.mu.Lock()
	h.daemon = nil
	h.mu.Unlock()
	for _, pattern := range []string{"run/*", "tmp/*", "xdg/*"} {
		paths, _ := filepath.Glob(filepath.Join(h.Dir, pattern)) // the patterns are well formed
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("reboot host %s: %w", h.Name, err)
			}
		}
	}
	// Its network goes some time after its last process.
	if port := h.port(); exists("/sys/class/net/" + port) {
		if err := ip(ctx, "link", "delete", port); err != nil && exists("/sys/class/net/"+port) {
			return err
		}
	}
	if err := h.boot(ctx); err != nil {
		return fmt.Errorf("reboot host %s: %w", h.Name, err)
	}
	return nil
}

// port is the host's end of its cable, on the bridge.
func (h *Host) port() string {
	return fmt.Sprintf("%s-%s", h.lab.instance.name(), h.Address[strings.LastIndexByte(h.Address, '.')+1:])
}

// stop kills whatever is in the host's cgroups.
func (h *Host) stop() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for left := 1; left > 0; {
		left = 0
		for _, hi := range all {
			left += killTree(filepath.Join(hi.mount, h.lab.instance.name(), h.Name))
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("stop host %s: %d cgroups are left", h.Name, left)
		}
		if left > 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if h.init != nil && h.init.Process != nil {
		_ = h.init.Wait() // it was killed
	}
	h.mu.Lock()
	d := h.daemon
	programs := h.programs
	h.mu.Unlock()
	if d != nil {
		<-d.done
	}
	for _, p := range programs {
		<-p.done
	}
	if unmount := h.unmountRun; unmount != nil {
		h.unmountRun = nil
		return unmount()
	}
	return nil
}
