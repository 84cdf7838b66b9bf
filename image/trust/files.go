package trust

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Files tells what is in the container's file systems that are not in CRIU's images. See [Local].
type Files interface {
	// Look tells of which kind a file is, as S_IFMT bits, and the target of a link. within is below the source of a mount of the specification, which is named by its number, or
	// below the root file system, [Root]. A file that is not there is of kind 0, and one of which nothing can be said of kind 1.
	Look(mount int, within string) (kind uint32, target string, err error)
}

// Root is the root file system, where [Files] are asked for a mount.
const Root = -1

// Local are the files of this host.
type Local struct {
	root int
	spec *specs.Spec
}

var _ Files = (*Local)(nil)

// NewLocal looks into the root file system that is mounted at rootfs, and into the sources of the bind mounts of spec.
func NewLocal(rootfs string, spec *specs.Spec) (*Local, error) {
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the root file system: %w", err)
	}
	return &Local{root: root, spec: spec}, nil
}

// Close lets go of the root file system.
func (l *Local) Close() error { return unix.Close(l.root) }

// Look implements [Files].
func (l *Local) Look(mount int, within string) (kind uint32, target string, err error) {
	if mount == Root {
		return in(l.root, within)
	}
	if mount < 0 || mount >= len(l.spec.Mounts) || !lookable(l.spec.Mounts[mount]) {
		return unknown, "", nil
	}
	source, err := unix.Open(l.spec.Mounts[mount].Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return unknown, "", nil //nolint:nilerr // runc says what is wrong with it
	}
	defer unix.Close(source)
	return in(source, within)
}

// lookable tells whether a mount is of a file or directory of this host.
func lookable(m specs.Mount) bool { return bind(m) && path.IsAbs(m.Source) }

// in looks below a directory, or at what else it is.
func in(root int, within string) (kind uint32, target string, err error) {
	fd, err := unix.Dup(root)
	if within = strings.TrimLeft(within, "/"); within != "" {
		_ = unix.Close(fd)
		fd, err = unix.Openat2(root, within, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH})
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return missing, "", nil
	}
	if err != nil {
		return missing, "", err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return missing, "", err
	}
	if kind = stat.Mode & unix.S_IFMT; kind == unix.S_IFLNK {
		buffer := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", buffer)
		return kind, string(buffer[:max(n, 0)]), err
	}
	return kind, "", nil
}
