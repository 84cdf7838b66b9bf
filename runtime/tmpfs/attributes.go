package tmpfs

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// kept tells which attributes are part of an image. Those of security modules belong to the host.
func kept(name string) bool {
	return strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.") || name == "security.capability" ||
		name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// readXattrs reads the attributes of a file or directory; other kinds have none that are kept. Source: xattr(7).
func readXattrs(fd int) (attrs []xattr, err error) {
	size, err := unix.Flistxattr(fd, nil)
	if size == 0 || err == unix.ENOTSUP {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list := make([]byte, size)
	if size, err = unix.Flistxattr(fd, list); err != nil {
		return nil, err
	}
	for _, name := range strings.Split(strings.TrimSuffix(string(list[:size]), "\x00"), "\x00") {
		if !kept(name) {
			continue
		}
		value := make([]byte, 64<<10) // the kernel's bound
		n, err := unix.Fgetxattr(fd, name, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		attrs = append(attrs, xattr{name, string(value[:n])})
	}
	return attrs, nil
}

// setAttributes sets owner, mode and attributes, in this order: each takes away some of what comes after it.
func setAttributes(fd int, e *entry) error {
	if err := unix.Fchown(fd, int(e.uid), int(e.gid)); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if err := unix.Fchmod(fd, e.mode); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	for _, a := range e.xattrs {
		if !kept(a.name) {
			continue
		}
		if err := unix.Fsetxattr(fd, a.name, []byte(a.value), 0); err != nil {
			return fmt.Errorf("set attribute %.100q: %w", a.name, err)
		}
	}
	return nil
}

// setByName sets what every file has. It is new and nobody else is there, so its name still means it.
func setByName(dir int, base string, e *entry) error {
	if err := unix.Fchownat(dir, base, int(e.uid), int(e.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if e.kind != typeSymlink {
		if err := unix.Fchmodat(dir, base, e.mode, 0); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
	}
	return setTimes(dir, base, e)
}

func setTimes(dir int, base string, e *entry) error {
	if err := unix.UtimesNanoAt(dir, base, []unix.Timespec{e.atime, e.mtime}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}
