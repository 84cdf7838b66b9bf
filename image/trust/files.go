package trust

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Files shows what is in the container's file systems that are not in CRIU's images. See [Local].
type Files interface {
	// Look returns of which kind a file is, as S_IFMT bits, and the target of a link. within is below the source of a mount of the specification, which is named by its number, or
	// below the root file system, [Root]. A file that is not there is of kind 0, and one of which nothing can be said of kind 1.
	Look(mount int, within string) (kind uint32, target string, err error)
	// May reports whether the specification's user can reach a path below the source of a mount of the specification without capabilities, and read what is there, or make it: then it may write to
	// the nearest directory that is there.
	May(mount int, within string, do Access) (bool, error)
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

// Access is what a user does to a file.
type Access string

// What a user may do.
const (
	Read Access = "read"
	Make Access = "make"
)

// May implements [Files]. It goes by modes.
func (l *Local) May(mount int, within string, do Access) (bool, error) {
	if mount < 0 || mount >= len(l.spec.Mounts) || !lookable(l.spec.Mounts[mount]) || l.spec.Process == nil {
		return false, nil
	}
	at, err := unix.Open(l.spec.Mounts[mount].Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, nil //nolint:nilerr // runc says what is wrong with it
	}
	defer func() { _ = unix.Close(at) }()
	const search, write, read = 1, 2, 4
	rest := parts(clean(within))
	for {
		var stat unix.Stat_t
		if err := unix.Fstat(at, &stat); err != nil {
			return false, err
		}
		allowed := l.allowed(stat)
		directory := stat.Mode&unix.S_IFMT == unix.S_IFDIR
		switch {
		case len(rest) == 0:
			return do == Read && allowed&read != 0, nil // what is there cannot be made
		case !directory || allowed&search == 0:
			return false, nil
		}
		next, err := unix.Openat(at, rest[0], unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if do == Make && (errors.Is(err, unix.ENOENT) || len(rest) == 1) {
			if err == nil {
				_ = unix.Close(next)
			}
			return allowed&write != 0, nil
		}
		if errors.Is(err, unix.ENOENT) {
			return true, nil // CRIU says that it is not there
		}
		if err != nil {
			return false, err
		}
		_ = unix.Close(at)
		at, rest = next, rest[1:]
	}
}

// allowed returns the bits of a file's mode that are about the specification's user.
func (l *Local) allowed(stat unix.Stat_t) uint32 {
	var linux specs.Linux
	if l.spec.Linux != nil {
		linux = *l.spec.Linux
	}
	u := l.spec.Process.User
	const all = 7
	switch {
	case stat.Uid == onHost(u.UID, linux.UIDMappings):
		return stat.Mode >> 6 & all
	case slices.ContainsFunc(append([]uint32{u.GID}, u.AdditionalGids...), func(g uint32) bool { return stat.Gid == onHost(g, linux.GIDMappings) }):
		return stat.Mode >> 3 & all
	}
	return stat.Mode & all
}

// onHost returns the host's id of a container's.
func onHost(id uint32, mappings []specs.LinuxIDMapping) uint32 {
	for _, m := range mappings {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return id - m.ContainerID + m.HostID
		}
	}
	return id
}

// lookable reports whether a mount is of a file or directory of this host.
func lookable(m specs.Mount) bool { return IsBindMount(m) && path.IsAbs(m.Source) }

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
