package image

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"
)

// overlayMark says what overlayfs noted of an entry of an upper directory
// (https://docs.kernel.org/filesystems/overlayfs.html).
type overlayMark struct {
	whiteout bool // the entry below is gone
	opaque   bool // entries of the directory below do not show
	moved    bool // the directory's entries below are elsewhere (redirect), or the file's data is below (metacopy)
}

// readMark reads the mark of an entry.
func readMark(path string, fi os.FileInfo) (overlayMark, error) {
	var m overlayMark
	st := fi.Sys().(*syscall.Stat_t)
	switch {
	case fi.Mode()&os.ModeCharDevice != 0:
		m.whiteout = st.Rdev == 0
		return m, nil
	case !fi.IsDir() && !fi.Mode().IsRegular():
		return m, nil
	}
	names, err := listXattrs(path)
	if err != nil {
		return m, err
	}
	for _, name := range names {
		mark, ok := overlayXattr(name)
		switch {
		case !ok:
		case fi.IsDir() && mark == "opaque":
			value, err := sysx.LGetxattr(path, name)
			if err != nil {
				return m, fmt.Errorf("read mark of %s: %w", path, err)
			}
			m.opaque = m.opaque || string(value) == "y" // "x": holds whiteouts that are marked files
		case fi.IsDir() && mark == "redirect", !fi.IsDir() && mark == "metacopy":
			m.moved = true
		case !fi.IsDir() && mark == "whiteout":
			m.whiteout = fi.Size() == 0
		}
	}
	return m, nil
}

// overlayXattr returns what follows the prefix of overlayfs's own attributes; user.overlay is that of unprivileged mounts.
func overlayXattr(name string) (string, bool) {
	for _, prefix := range []string{"trusted.overlay.", "user.overlay."} {
		if mark, ok := strings.CutPrefix(name, prefix); ok {
			return mark, true
		}
	}
	return "", false
}

// kept reports whether an attribute is the container's own and goes into a layer.
func kept(name string) bool {
	if _, overlay := overlayXattr(name); overlay {
		return false
	}
	switch name {
	case xattrCapability, xattrACL, xattrDefaultACL:
		return true
	}
	return strings.HasPrefix(name, "user.")
}

const (
	xattrCapability = "security.capability"
	xattrACL        = "system.posix_acl_access"
	xattrDefaultACL = "system.posix_acl_default"
)

func listXattrs(path string) ([]string, error) {
	names, err := sysx.LListxattr(path)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return nil, fmt.Errorf("list attributes of %s: %w", path, err)
	}
	return names, nil
}

// mergedView mounts upper over lower, read-only and nowhere: it is reached through the path given, until closed. It shows what
// the container saw, also where overlayfs moved directories or left data below.
func mergedView(lower, upper string) (path string, unmount func() error, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("mount %s over %s: %w", upper, lower, err)
		}
	}()
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return "", nil, err
	}
	defer unix.Close(fs)
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`)
	for _, option := range [][2]string{
		{"lowerdir", escape.Replace(upper) + ":" + escape.Replace(lower)},
		{"redirect_dir", "follow"},
		{"metacopy", "on"},
	} {
		if err := unix.FsconfigSetString(fs, option[0], option[1]); err != nil {
			return "", nil, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return "", nil, err
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d", mnt), func() error { return unix.Close(mnt) }, nil
}
