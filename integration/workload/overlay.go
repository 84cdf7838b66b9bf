package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// overlay is a root file system in which files of the image were replaced by others of other kinds, some of them while
// they were open, as an update of packages does.
type overlay struct {
	replaced *os.File // an image's file that has been replaced by a new one of its name
	copied   *os.File // an image's file, opened for reading before it was changed, which copied it
	linked   *os.File // opened by a name that is gone; the file has another
	content  map[*os.File][]byte
}

// replacements are further changes, in the form of those of the rootfs workload.
var replacements = []struct {
	name  string
	make  func() error
	check func() error
}{
	{"directory emptied and made again", func() error {
		return errors.Join(os.RemoveAll("/usr/share/old"), os.MkdirAll("/usr/share/old", 0o711), os.WriteFile("/usr/share/old/new", []byte("new"), 0o600))
	}, func() error {
		return errors.Join(gone("/usr/share/old/file"), gone("/usr/share/old/below"), has("/usr/share/old/new", "new", 0o600), mode("/usr/share/old", os.ModeDir|0o711))
	}},
	{"directory removed", func() error { return os.RemoveAll("/usr/share/removed") }, func() error { return gone("/usr/share/removed") }},
	{"directory becomes a file", func() error {
		return errors.Join(os.RemoveAll("/usr/share/directory"), os.WriteFile("/usr/share/directory", []byte("file"), 0o644))
	}, func() error { return has("/usr/share/directory", "file", 0o644) }},
	{"file becomes a directory", func() error {
		return errors.Join(os.Remove("/usr/share/file"), os.MkdirAll("/usr/share/file/below", 0o755))
	}, func() error { return mode("/usr/share/file/below", os.ModeDir|0o755) }},
	{"file becomes a link", func() error {
		return errors.Join(os.Remove("/usr/share/link"), os.Symlink("/nowhere", "/usr/share/link"))
	},
		func() error { return links("/usr/share/link", "/nowhere") }},
	{"permissions of a directory", func() error { return os.Chmod("/usr/share/kept", 0o700) },
		func() error {
			return errors.Join(mode("/usr/share/kept", os.ModeDir|0o700), has("/usr/share/kept/file", "kept\n", 0o644))
		}},
	{"time of a directory", func() error {
		return errors.Join(os.Mkdir("/usr/share/dated", 0o755), unix.UtimesNano("/usr/share/dated", []unix.Timespec{{Sec: 1e9, Nsec: 123456789}, {Sec: 1e9, Nsec: 123456789}}))
	}, func() error { return modified("/usr/share/dated", 1e9) }},
	{"device node", func() error { return unix.Mknod("/usr/share/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) },
		func() error { return device("/usr/share/null", 1, 3) }},
	{"capabilities of a file", func() error {
		return errors.Join(touch("/usr/share/capable"), unix.Setxattr("/usr/share/capable", "security.capability", netBind, 0))
	}, func() error { return attribute("/usr/share/capable", "security.capability", string(netBind)) }},
	{"attribute of a directory", func() error {
		return errors.Join(os.Mkdir("/usr/share/marked", 0o755), unix.Setxattr("/usr/share/marked", "user.binary", []byte{0, 1, '\n', 0xff}, 0))
	}, func() error { return attribute("/usr/share/marked", "user.binary", "\x00\x01\n\xff") }},
	{"hard link across directories", func() error {
		return errors.Join(os.MkdirAll("/usr/share/a", 0o755), os.MkdirAll("/usr/share/b", 0o755), touch("/usr/share/a/one"), os.Link("/usr/share/a/one", "/usr/share/b/two"))
	}, func() error { return same("/usr/share/a/one", "/usr/share/b/two") }},
}

// netBind is CAP_NET_BIND_SERVICE, permitted and effective, in the form of linux/capability.h, vfs_cap_data revision 2.
var netBind = []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

func startOverlay(flags *flag.FlagSet, args []string) (workload, error) {
	link := flags.Bool("link", false, "also have a file open whose name is gone and that has another")
	program := flags.Bool("program", false, "also replace the program that runs")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for _, r := range replacements {
		if err := r.make(); err != nil {
			return nil, fmt.Errorf("make %s: %w", r.name, err)
		}
	}
	o := &overlay{content: map[*os.File][]byte{}}
	steps := []func() error{o.replace, o.change}
	if *link {
		steps = append(steps, o.unlink)
	}
	if *program {
		steps = append(steps, o.update)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (o *overlay) open(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	content := make([]byte, 64)
	n, err := f.ReadAt(content, 0)
	if n == 0 {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	o.content[f] = content[:n]
	return f, nil
}

// replace puts a new file in the place of one that is open.
func (o *overlay) replace() (err error) {
	if o.replaced, err = o.open("/usr/share/kept/replaced"); err != nil {
		return err
	}
	return errors.Join(os.WriteFile("/usr/share/kept/staged", []byte("another file"), 0o644), os.Rename("/usr/share/kept/staged", "/usr/share/kept/replaced"))
}

// update replaces the program that runs by another version of it.
func (o *overlay) update() error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile("/bin/workload.new", append(program, "of another size"...), 0o755), os.Rename("/bin/workload.new", "/bin/workload"))
}

// change writes to a file of the image that is open for reading, which makes a copy of it: what is open is the copy then.
func (o *overlay) change() (err error) {
	if o.copied, err = o.open("/usr/share/kept/changed"); err != nil {
		return err
	}
	o.content[o.copied] = []byte("altered")
	return os.WriteFile("/usr/share/kept/changed", []byte("altered"), 0o644)
}

func (o *overlay) unlink() (err error) {
	const one, other = "/usr/share/a/name", "/usr/share/a/other"
	if err := errors.Join(os.WriteFile(one, []byte("linked"), 0o644), os.Link(one, other)); err != nil {
		return err
	}
	if o.linked, err = o.open(one); err != nil {
		return err
	}
	return os.Remove(one)
}

func (o *overlay) Check() (map[string]any, error) {
	var errs []error
	for _, r := range replacements {
		if err := r.check(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.name, err))
		}
	}
	errs = append(errs, has("/usr/share/kept/replaced", "another file", 0o644), has("/usr/share/kept/changed", "altered", 0o644))
	for f, want := range o.content {
		content := make([]byte, len(want))
		if _, err := f.ReadAt(content, 0); err != nil || !bytes.Equal(content, want) {
			errs = append(errs, fmt.Errorf("open file %s holds %q, not %q (%v)", filepath.Base(f.Name()), content, want, err))
		}
	}
	return map[string]any{"changes": len(replacements), "open": len(o.content)}, errors.Join(errs...)
}

func device(path string, major, minor uint32) error {
	s, err := status(path)
	if err == nil && (s.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(s.Rdev) != major || unix.Minor(s.Rdev) != minor) {
		err = fmt.Errorf("%s is %o %d:%d", path, s.Mode, unix.Major(s.Rdev), unix.Minor(s.Rdev))
	}
	return err
}
