package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// rootFS is a root file system changed in every way a layer can express.
type rootFS struct{}

// changes have been made to the image's root, each with the check that it is still so.
var changes = []struct {
	name  string
	make  func() error
	check func() error
}{
	{"new file", func() error { return os.WriteFile("/etc/new", []byte("new"), 0o640) }, func() error { return has("/etc/new", "new", 0o640) }},
	{"changed file", func() error { return os.WriteFile("/etc/motd", []byte("changed"), 0o644) }, func() error { return has("/etc/motd", "changed", 0o644) }},
	{"removed file", func() error { return os.Remove("/bin/hostname") }, func() error { return gone("/bin/hostname") }},
	{"replaced directory", func() error {
		return errors.Join(os.Remove("/var"), os.Mkdir("/var", 0o700), os.WriteFile("/var/inside", nil, 0o600))
	}, func() error { return errors.Join(has("/var/inside", "", 0o600), mode("/var", os.ModeDir|0o700)) }},
	{"renamed file", func() error { return os.Rename("/bin/date", "/bin/day") }, func() error { return gone("/bin/date") }},
	{"symbolic link", func() error { return os.Symlink("new", "/etc/link") }, func() error { return links("/etc/link", "new") }},
	{"hard link", func() error { return os.Link("/etc/new", "/etc/hard") }, func() error { return same("/etc/new", "/etc/hard") }},
	{"owner", func() error { return errors.Join(touch("/etc/owned"), os.Chown("/etc/owned", 1000, 2000)) }, func() error { return owned("/etc/owned", 1000, 2000) }},
	{"set-user-id", func() error { return errors.Join(touch("/etc/suid"), os.Chmod("/etc/suid", 0o755|os.ModeSetuid)) },
		func() error { return mode("/etc/suid", os.ModeSetuid|0o755) }},
	{"time", func() error {
		return errors.Join(touch("/etc/old"), os.Chtimes("/etc/old", time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}, func() error { return modified("/etc/old", 1e9) }},
	{"sparse file", func() error { return errors.Join(touch("/etc/sparse"), os.Truncate("/etc/sparse", 64<<20)) }, func() error { return sparse("/etc/sparse", 64<<20) }},
	{"long name", func() error { return touch("/etc/" + strings.Repeat("n", 200)) }, func() error { return has("/etc/"+strings.Repeat("n", 200), "", 0o644) }},
	{"odd name", func() error { return touch("/etc/odd\n name\xff") }, func() error { return has("/etc/odd\n name\xff", "", 0o644) }},
	{"extended attribute", func() error {
		return errors.Join(touch("/etc/attr"), unix.Setxattr("/etc/attr", "user.cryo", []byte("v"), 0))
	},
		func() error { return attribute("/etc/attr", "user.cryo", "v") }},
	{"fifo", func() error { return unix.Mkfifo("/etc/fifo", 0o600) }, func() error { return mode("/etc/fifo", os.ModeNamedPipe|0o600) }},
}

func startRootFS(flags *flag.FlagSet, args []string) (workload, error) {
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for _, c := range changes {
		if err := c.make(); err != nil {
			return nil, fmt.Errorf("make %s: %w", c.name, err)
		}
	}
	return rootFS{}, nil
}

func (rootFS) Check() (map[string]any, error) {
	var errs []error
	for _, c := range changes {
		if err := c.check(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	return map[string]any{"changes": len(changes)}, errors.Join(errs...)
}

func touch(path string) error { return os.WriteFile(path, nil, 0o644) }

func has(path, content string, m os.FileMode) error {
	got, err := os.ReadFile(path)
	if err == nil && string(got) != content {
		err = fmt.Errorf("%s holds %q", path, got)
	}
	return errors.Join(err, mode(path, m))
}

func gone(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is there (%v)", path, err)
	}
	return nil
}

func mode(path string, m os.FileMode) error {
	i, err := os.Lstat(path)
	if err == nil && i.Mode() != m {
		err = fmt.Errorf("%s has mode %s, not %s", path, i.Mode(), m)
	}
	return err
}

func links(path, target string) error {
	got, err := os.Readlink(path)
	if err == nil && got != target {
		err = fmt.Errorf("%s points to %s", path, got)
	}
	return err
}

func same(a, b string) error {
	i, err := os.Stat(a)
	if err != nil {
		return err
	}
	j, err := os.Stat(b)
	if err == nil && !os.SameFile(i, j) {
		err = fmt.Errorf("%s and %s are two files", a, filepath.Base(b))
	}
	return err
}

func status(path string) (s unix.Stat_t, err error) { return s, unix.Lstat(path, &s) }

func owned(path string, uid, gid uint32) error {
	s, err := status(path)
	if err == nil && (s.Uid != uid || s.Gid != gid) {
		err = fmt.Errorf("%s is of %d:%d", path, s.Uid, s.Gid)
	}
	return err
}

func modified(path string, seconds int64) error {
	s, err := status(path)
	if err == nil && s.Mtim.Sec != seconds {
		err = fmt.Errorf("%s was changed at %d", path, s.Mtim.Sec)
	}
	return err
}

func sparse(path string, size int64) error {
	s, err := status(path)
	if err == nil && s.Size != size {
		err = fmt.Errorf("%s has %d bytes", path, s.Size)
	}
	return err
}

func attribute(path, name, value string) error {
	buffer := make([]byte, 100)
	n, err := unix.Getxattr(path, name, buffer)
	if err == nil && string(buffer[:n]) != value {
		err = fmt.Errorf("%s of %s is %q", name, path, buffer[:n])
	}
	return err
}
