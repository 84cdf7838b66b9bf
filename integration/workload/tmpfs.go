package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tmpfsFiles are all kinds of files in a directory of a tmpfs, and what they were when they had been made.
type tmpfsFiles struct {
	dir    string
	before map[string]string
}

func startTmpfs(flags *flag.FlagSet, args []string) (workload, error) {
	dir := flags.String("dir", "/dev/shm/tmpfs", "directory of the files")
	mib := flags.Int("large", 8, "size of the largest file, in MiB")
	plain := flags.Bool("plain", false, "only what GNU tar keeps as CRIU calls it")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if err := makeFiles(*dir, *mib, *plain); err != nil {
		return nil, err
	}
	before, err := describeTree(*dir)
	return &tmpfsFiles{*dir, before}, err
}

func makeFiles(dir string, mib int, plain bool) error {
	below := func(name string) string { return filepath.Join(dir, name) }
	deep := below(strings.Repeat("deep/", 100))
	long := below(strings.Repeat("n", 200))
	err := errors.Join(
		os.MkdirAll(below("directory/empty"), 0o750),
		os.MkdirAll(deep, 0o700),
		randomFile(below("large"), 0, int64(mib)<<20),
		touch(below("holes")),
		randomFile(below("holes"), 1<<20, 100<<10), randomFile(below("holes"), 1<<40, 5000), os.Truncate(below("holes"), 1<<41),
		touch(below("hole")), os.Truncate(below("hole"), 64<<20),
		randomFile(below("begins"), 0, 8192), os.Truncate(below("begins"), 1<<30),
		randomFile(long, 0, 777),
		randomFile(below("odd\n name\xff"), 0, 65531),
		randomFile(filepath.Join(deep, "file"), 0, 65536),
		os.Link(long, below("directory/hard")),
		os.Symlink("../somewhere/else", below("directory/link")), os.Symlink(strings.Repeat("/long", 100), below("directory/long-link")),
		os.Link(below("directory/link"), below("hard-link-of-link")),
		unix.Mkfifo(below("fifo"), 0o620),
		touch(below("suid")), os.Lchown(below("suid"), 1000, 2000), os.Chmod(below("suid"), 0o711|os.ModeSetuid|os.ModeSetgid),
		os.Lchown(below("directory/link"), 4000000, 4000001),
		os.Chmod(below("directory"), 0o555|os.ModeSticky),
	)
	// Not for a user namespace's root.
	if node := unix.Mknod(below("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); !errors.Is(node, unix.EPERM) {
		err = errors.Join(err, node)
	}
	// The kernel has this for a tmpfs since Linux 6.6.
	if !plain {
		if attr := unix.Setxattr(below("suid"), "user.cryo", []byte("a\x00b\n"), 0); !errors.Is(attr, unix.ENOTSUP) {
			err = errors.Join(err, attr, unix.Setxattr(dir, "user.directory", nil, 0))
		}
	}
	moment := time.Unix(1e9, 123456789)
	if plain {
		moment = time.Unix(1e9, 0)
	}
	return errors.Join(err, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		t := unix.NsecToTimespec(moment.UnixNano())
		return errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW))
	}))
}

func randomFile(path string, offset, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	_, err = io.CopyN(f, newRandom(uint64(size)), size)
	return errors.Join(err, f.Close())
}

// describeTree tells all there is to know of a directory, but what cannot be set: numbers of inodes, times of change.
func describeTree(dir string) (map[string]string, error) {
	all, first := map[string]string{}, map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		s, err := status(path)
		if err != nil {
			return err
		}
		if s.Nlink > 1 && first[s.Ino] == "" {
			first[s.Ino] = path
		}
		text := fmt.Sprintf("mode %o, owner %d:%d, %d bytes, device %x, changed %v, links %d %s",
			s.Mode, s.Uid, s.Gid, s.Size, s.Rdev, s.Mtim, s.Nlink, first[s.Ino])
		switch s.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += ", to " + target
		case unix.S_IFREG, unix.S_IFDIR:
			more, err := describeContents(path, &s)
			if err != nil {
				return err
			}
			text += more
		}
		all[path] = text
		return nil
	})
	return all, err
}

func describeContents(path string, s *unix.Stat_t) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	list := make([]byte, 4096)
	n, err := unix.Flistxattr(int(f.Fd()), list)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return "", err
	}
	var text strings.Builder
	for _, name := range strings.Split(strings.TrimSuffix(string(list[:max(n, 0)]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, ", %s %q", name, value[:n])
	}
	for at := int64(0); s.Mode&unix.S_IFMT == unix.S_IFREG && at < s.Size; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return "", err
		}
		if at, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE); err != nil {
			return "", err
		}
		digest := sha256.New()
		if _, err := io.Copy(digest, io.NewSectionReader(f, start, at-start)); err != nil {
			return "", err
		}
		fmt.Fprintf(&text, ", from %d to %d %x", start, at, digest.Sum(nil))
	}
	return text.String(), nil
}

func (w *tmpfsFiles) Check() (map[string]any, error) {
	now, err := describeTree(w.dir)
	for path, was := range w.before {
		if now[path] != was {
			err = errors.Join(err, fmt.Errorf("%q was %s; it is %s", path, was, now[path]))
		}
		delete(now, path)
	}
	for path, is := range now {
		err = errors.Join(err, fmt.Errorf("%q was not there; it is %s", path, is))
	}
	return map[string]any{"files": len(w.before)}, err
}
