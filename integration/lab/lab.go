package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Options say where a lab finds what it runs. The zero value is right inside a built checkout.
type Options struct {
	Dir string // parent of all labs; "": environment CRYO_LAB, or /var/tmp/cryo-lab
	Bin string // cryo's binaries and tools/; "": environment CRYO_BIN, or bin/ of the checkout
	Add string // directory with files, directories and symbolic links that the base image has as well; "": none
}

// Lab is a bridge with hosts and registries on it. Its methods may be called from several goroutines.
type Lab struct {
	Dir string // this lab's directory

	options  Options
	instance *instance
	criu     string // directory of the criu binary
	image    Image
	reaper   *reaper

	mu         sync.Mutex
	hosts      []*Host
	registries []*Registry
	addresses  int // guarded by mu: last host number given out on the bridge
}

// MissingError says that this machine lacks something the lab needs; tests skip on it unless CI is set.
type MissingError struct {
	What string
	Hint string
}

func (e *MissingError) Error() string { return e.What + ": " + e.Hint }

// Open makes an empty lab, after clearing away labs whose owners are gone.
func Open(ctx context.Context, o Options) (*Lab, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	criu, err := findCRIU()
	if err != nil {
		return nil, err
	}
	in, err := claim(o.Dir)
	if err != nil {
		return nil, err
	}
	l := &Lab{Dir: in.dir, options: o, instance: in, criu: filepath.Dir(criu), addresses: 1}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) (err error) {
	if l.reaper, err = startReaper(l.instance); err != nil {
		return err
	}
	if err := l.instance.makeCgroups(); err != nil {
		return err
	}
	if err := l.instance.makeBridge(ctx); err != nil {
		return err
	}
	l.image, err = writeImage(filepath.Join(l.Dir, "image.tar"), l.Tool("workload"), l.options.Add, ImageName, []string{"workload", "count"}, nil)
	return err
}

// Tool is the path of a program the project builds: cryo's own, or one of the pinned tools.
func (l *Lab) Tool(name string) string { return l.options.tool(name) }

func (o Options) tool(name string) string {
	path := filepath.Join(o.Bin, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	return filepath.Join(o.Bin, "tools", name)
}

// Address is the machine's own address on the bridge, where registries listen.
func (l *Lab) Address() string { return l.instance.address(1) }

// Image is the base image every host can import, see [Host.Import].
func (l *Lab) Image() Image { return l.image }

// Close ends the hosts and registries and removes all traces. The error names what could not be removed.
func (l *Lab) Close() error {
	l.mu.Lock()
	hosts, registries := l.hosts, l.registries
	l.hosts, l.registries = nil, nil
	l.mu.Unlock()
	var errs []error
	for _, h := range hosts {
		errs = append(errs, h.stop())
	}
	for _, r := range registries {
		errs = append(errs, r.Stop())
	}
	errs = append(errs, l.instance.sweep())
	for _, trace := range l.instance.traces() {
		errs = append(errs, fmt.Errorf("close lab: left: %s", trace))
	}
	if l.reaper != nil {
		errs = append(errs, l.reaper.stop())
	}
	return errors.Join(append(errs, l.instance.release())...)
}

// complete fills in defaults and checks that what they name is there.
func (o Options) complete() (Options, error) {
	if o.Dir == "" {
		o.Dir = os.Getenv("CRYO_LAB")
	}
	if o.Dir == "" {
		o.Dir = "/var/tmp/cryo-lab"
	}
	if o.Bin == "" {
		o.Bin = os.Getenv("CRYO_BIN")
	}
	if o.Bin == "" {
		root, err := Checkout()
		if err != nil {
			return o, err
		}
		o.Bin = filepath.Join(root, "bin")
	}
	if os.Geteuid() != 0 {
		return o, &MissingError{"not root", "a lab makes namespaces and cgroups; run as root"}
	}
	for _, name := range []string{"containerd", "ctr", "runc", "registry", "workload"} {
		if _, err := os.Stat(o.tool(name)); err != nil {
			return o, &MissingError{"no " + name + " in " + o.Bin, "run: make build tools"}
		}
	}
	for _, name := range []string{"ip", "unshare", "nsenter", "busybox"} {
		if _, err := exec.LookPath(name); err != nil {
			return o, &MissingError{"no " + name, "run: make deps"}
		}
	}
	return o, diskOK(o.Dir)
}

// diskOK says whether overlayfs takes its upper directories in dir: it does not where dir is itself on one.
func diskOK(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("make lab directory: %w", err)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return os.NewSyscallError("statfs "+dir, err)
	}
	const overlay = 0x794c7630 // OVERLAYFS_SUPER_MAGIC, statfs(2)
	if fs.Type == overlay {
		return &MissingError{dir + " is on overlayfs", "set CRYO_LAB to a directory on a disk"}
	}
	return nil
}

// findCRIU is the binary contrib/criu/install provides, or else the first in PATH; CRYO_CRIU overrides both.
func findCRIU() (string, error) {
	if path := os.Getenv("CRYO_CRIU"); path != "" {
		return path, nil
	}
	const provided = "/opt/cryo/criu/bin/criu"
	if _, err := os.Stat(provided); err == nil {
		return provided, nil
	}
	path, err := exec.LookPath("criu")
	if err != nil {
		return "", &MissingError{"no criu", "run: make deps"}
	}
	return path, nil
}

// Checkout is the root of the checkout that holds the working directory.
func Checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), "module github.com/cryo-project/cryo\n") {
			return dir, nil
		}
	}
	return "", fmt.Errorf("find checkout: %w; set CRYO_BIN", os.ErrNotExist)
}
