package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// instances is how many labs fit on a machine: each takes a /24 of 10.213.0.0/16.
const instances = 250

// instance is a lab's number, from which the names of all it leaves in the system follow.
type instance struct {
	number int
	dir    string
	lock   *os.File // holds the number while owner or reaper live
}

// claim takes the first free number and clears what an owner that died left under it.
func claim(parent string) (*instance, error) {
	if err := os.MkdirAll(parent, 0o711); err != nil {
		return nil, fmt.Errorf("make lab directory: %w", err)
	}
	var claimed *instance
	for n := 1; n <= instances; n++ {
		dir := filepath.Join(parent, strconv.Itoa(n))
		_, err := os.Stat(dir)
		if claimed != nil && err != nil {
			continue
		}
		in, err := lockInstance(n, dir)
		if err != nil {
			return nil, err
		}
		if in == nil {
			continue
		}
		if err := in.sweep(); err != nil {
			return nil, fmt.Errorf("clear lab %d: %w", n, err)
		}
		if claimed != nil {
			if err := in.release(); err != nil {
				return nil, err
			}
			continue
		}
		claimed = in
	}
	if claimed == nil {
		return nil, fmt.Errorf("claim lab in %s: all %d numbers are taken", parent, instances)
	}
	return claimed, nil
}

// lockInstance is nil where somebody else holds the number. The lock is an abstract socket: it is known in the whole
// network namespace, as the names of network devices are, whatever the directory, and gone with the last process that has it.
func lockInstance(n int, dir string) (*instance, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@cryo-lab-%d", n), Net: "unix"})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock lab %d: %w", n, err)
	}
	defer listener.Close()
	lock, err := listener.File()
	if err != nil {
		return nil, fmt.Errorf("lock lab %d: %w", n, err)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, errors.Join(fmt.Errorf("make lab directory: %w", err), lock.Close())
	}
	return &instance{number: n, dir: dir, lock: lock}, nil
}

// release removes the directory and frees the number.
func (in *instance) release() error {
	return errors.Join(os.RemoveAll(in.dir), in.lock.Close())
}

func (in *instance) name() string { return "cryo" + strconv.Itoa(in.number) }

func (in *instance) address(host int) string { return fmt.Sprintf("10.213.%d.%d", in.number, host) }

// makeBridge gives the machine an address of its own in the lab's network. A bridge without a hardware address of its own
// takes one of its ports', another with each host that comes, and the others would speak to the old one for a while.
func (in *instance) makeBridge(ctx context.Context) error {
	for _, args := range [][]string{
		{"link", "add", in.name(), "address", fmt.Sprintf("02:00:0a:d5:%02x:01", in.number), "type", "bridge"},
		{"address", "add", in.address(1) + "/24", "dev", in.name()},
		{"link", "set", in.name(), "up"},
	} {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func ip(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// sweep ends every process of the lab and removes what it made, its directory excepted. It may be repeated.
func (in *instance) sweep() error {
	errs := []error{in.removeCgroups()}
	links, err := os.ReadDir("/sys/class/net")
	errs = append(errs, err)
	for _, link := range links {
		if name := link.Name(); name == in.name() || strings.HasPrefix(name, in.name()+"-") {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			if err := ip(ctx, "link", "delete", name); err != nil && exists("/sys/class/net/"+name) {
				errs = append(errs, err)
			}
			cancel()
		}
	}
	errs = append(errs, in.unmount())
	entries, err := os.ReadDir(in.dir)
	errs = append(errs, err)
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(in.dir, e.Name())))
	}
	return errors.Join(errs...)
}

// traces lists what is left of a lab that was swept.
func (in *instance) traces() []string {
	var found []string
	if all, err := hierarchies(); err == nil {
		for _, h := range all {
			for _, dir := range subtree(filepath.Join(h.mount, in.name())) {
				found = append(found, "cgroup "+dir)
			}
		}
	}
	links, _ := filepath.Glob("/sys/class/net/" + in.name() + "*") // the pattern is well formed
	for _, link := range links {
		if base := filepath.Base(link); base == in.name() || strings.HasPrefix(base, in.name()+"-") {
			found = append(found, "network device "+base)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, in.dir+"/") {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return found
}

// unmount undoes mounts under the lab's directory in the machine's own mount namespace; there should be none.
func (in *instance) unmount() error {
	points, err := mountPoints("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- {
		if strings.HasPrefix(points[i], in.dir+"/") {
			errs = append(errs, os.NewSyscallError("umount "+points[i], syscall.Unmount(points[i], syscall.MNT_DETACH)))
		}
	}
	return errors.Join(errs...)
}

// mountPoints reads the fifth field of a mountinfo file, see proc_pid_mountinfo(5).
func mountPoints(path string) ([]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	var points []string
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, fields[4])
		}
	}
	return points, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
