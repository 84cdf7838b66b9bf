package guard

import (
	"archive/tar"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// paxXattr is the prefix of extended attributes in a tar, as GNU tar has it.
const paxXattr = "SCHILY.xattr."

// kept tells which attributes are part of an image. Those of security modules belong to the host.
func kept(name string) bool {
	return strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "trusted.") || name == "security.capability" ||
		name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// readXattrs reads the attributes of a file or directory into its header; other kinds have none that are kept. Source: xattr(7).
func readXattrs(fd int, h *tar.Header) error {
	size, err := unix.Flistxattr(fd, nil)
	if size == 0 || err == unix.ENOTSUP {
		return nil
	}
	if err != nil {
		return err
	}
	list := make([]byte, size)
	if size, err = unix.Flistxattr(fd, list); err != nil {
		return err
	}
	h.PAXRecords = map[string]string{}
	for _, name := range strings.Split(strings.TrimSuffix(string(list[:size]), "\x00"), "\x00") {
		if !kept(name) {
			continue
		}
		value := make([]byte, 64<<10) // the kernel's bound
		n, err := unix.Fgetxattr(fd, name, value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		h.PAXRecords[paxXattr+name] = string(value[:n])
	}
	return nil
}

// setAttributes sets owner, mode and attributes, in this order: each takes away some of what comes after it.
func setAttributes(fd int, h *format.TarHead) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if err := unix.Fchmod(fd, uint32(h.Mode&0o7777)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, paxXattr); ok && kept(name) {
			if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
				return fmt.Errorf("set attribute %.100q: %w", name, err)
			}
		}
	}
	return nil
}

// setByName sets what every file has. It is new and no other process is there, so its name still means it.
func setByName(dir int, base string, h *format.TarHead) error {
	if err := unix.Fchownat(dir, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if h.Typeflag != tar.TypeSymlink {
		if err := unix.Fchmodat(dir, base, uint32(h.Mode&0o7777), 0); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
	}
	return setTimes(dir, base, h)
}

func setTimes(dir int, base string, h *format.TarHead) error {
	accessed, changed := h.AccessTime, h.ModTime
	if accessed.IsZero() {
		accessed = changed
	}
	if err := unix.UtimesNanoAt(dir, base, []unix.Timespec{timespec(accessed), timespec(changed)}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}
