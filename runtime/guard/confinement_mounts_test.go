package guard

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestEnter enters the namespace and tries to write: in the places that were named, and everywhere else.
func TestEnter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	base, err := os.MkdirTemp("/var/tmp", "confinement") // not below scratch
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	p := places{work: filepath.Join(base, "work"), images: filepath.Join(base, "images"), config: filepath.Join(base, "config"),
		has: map[specs.LinuxNamespaceType]bool{specs.NetworkNamespace: true, specs.UTSNamespace: true, specs.UserNamespace: true}}
	root, dir, file, absent, kept := filepath.Join(base, "root"), filepath.Join(base, "source"), filepath.Join(base, "file"), filepath.Join(base, "absent"), filepath.Join(base, "readonly")
	p.root, p.sources = &root, []source{{path: &dir}, {path: &file}, {path: &absent}, {path: &kept, readonly: true}}
	for _, dir := range []string{p.work, p.images, root, dir, kept} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	image := filepath.Join(p.images, "changed.img")
	p.changed = map[string][]byte{"changed.img": []byte("new")}
	for _, name := range []string{p.config, file, image} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with its namespaces
		failed <- insidePlaces(p, base, absent)
	}()
	if err := <-failed; err != nil {
		t.Error(err)
	}
	for _, name := range []string{"root/made", "source/made", "work/made"} {
		if _, err := os.Stat(filepath.Join(base, name)); err != nil {
			t.Errorf("what was written is not there: %v", err)
		}
	}
	if data, err := os.ReadFile(image); err != nil || len(data) > 0 {
		t.Errorf("the image that CRIU is to find another for is %q (%v)", data, err)
	}
	if mounted, err := os.ReadFile("/proc/self/mountinfo"); err != nil || len(mounted) == 0 {
		t.Error(err)
	}
}

// TestEnterShared enters the namespace where all mounts of the host are shared, as systemd has them, and CRIU works where its images are: nothing of it shows on the host.
func TestEnterShared(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	base, err := os.MkdirTemp("/var/tmp", "confinement") // not below scratch
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	p := places{root: &base, work: base, images: base, config: filepath.Join(base, "changed.img"), changed: map[string][]byte{"changed.img": []byte("new")}}
	if err := os.WriteFile(p.config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var before, after string
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with its namespaces
		failed <- func() error {
			err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""), unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""))
			if err != nil {
				return err
			}
			mounts, err := os.Open(fmt.Sprintf("/proc/self/task/%d/mountinfo", unix.Gettid()))
			if err != nil {
				return err
			}
			defer mounts.Close()
			data, err := io.ReadAll(mounts)
			if err != nil {
				return err
			}
			before = string(data)
			if _, err := enter(p); err != nil {
				return err
			}
			if _, err := mounts.Seek(0, io.SeekStart); err != nil {
				return err
			}
			data, err = io.ReadAll(mounts)
			after = string(data)
			return err
		}()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(after) {
		if !strings.Contains(before, line) {
			t.Errorf("the host has another mount: %s", line)
		}
	}
}

func insidePlaces(p places, base, absent string) error {
	o, err := enter(p)
	if err != nil {
		return err
	}
	write := func(path string) error {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	var all []error
	for _, path := range []string{
		filepath.Join(*p.root, "made"), filepath.Join(*p.sources[0].path, "made"), *p.sources[1].path, fmt.Sprintf("/proc/self/fd/%d/made", o.work), filepath.Join(p.work, "again"),
		"/tmp/made", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/hostname", fmt.Sprintf("/proc/self/task/%d/comm", unix.Gettid()),
	} {
		if err := write(path); err != nil {
			all = append(all, fmt.Errorf("%s cannot be written to: %w", path, err))
		}
	}
	for _, path := range []string{
		filepath.Join(*p.sources[3].path, "made"), filepath.Join(base, "root/other"), filepath.Join(base, "made"), fmt.Sprintf("/proc/self/fd/%d/made", o.images), "/etc/made", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/panic", "/sys/made",
	} {
		if err := write(path); !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EACCES) {
			all = append(all, fmt.Errorf("%s can be written to, or is missed: %w", path, err))
		}
	}
	if data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/changed.img", o.images)); string(data) != "new" {
		all = append(all, fmt.Errorf("the changed image is %q, %w", data, err))
	}
	if *p.sources[2].path != absent {
		all = append(all, fmt.Errorf("what is not there is at %s", *p.sources[2].path))
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", o.config), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return errors.Join(append(all, err, unix.Close(fd))...)
}
