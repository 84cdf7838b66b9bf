package trust

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// mounts: what the images mount must be the rootfs, what the specification mounts from outside, or a file system that the
// kernel makes anew; and the files of /proc that every container has masked or read-only must be so.
func (r *imageReviewer) mounts() error {
	names, err := files(r.images, "mountpoints-*.img")
	if err != nil {
		return err
	}
	for _, name := range names {
		entries, err := read[mnt.MntEntry](r.images, name)
		if err != nil {
			return err
		}
		if err := r.tree(entries); err != nil {
			return &DamagedError{File: name, Err: err}
		}
	}
	return nil
}

// maxMounts are as many as a specification may list.
const maxMounts = 4096

// tree reviews the mounts of one mount namespace.
func (r *imageReviewer) tree(entries []*mnt.MntEntry) error {
	if len(entries) > maxMounts {
		return fmt.Errorf("%d mounts; %d are allowed", len(entries), maxMounts)
	}
	ids := map[uint32]bool{}
	for _, e := range entries {
		if ids[e.GetMntId()] {
			return errors.New("two mounts have one id")
		}
		ids[e.GetMntId()] = true
		at := e.GetMountpoint()
		if err := errors.Join(inside(at), inside(e.GetRoot())); err != nil {
			return err
		}
		if !strings.HasPrefix(at, "/") || path.Clean(at) != at {
			return fmt.Errorf("a mount at %q", at)
		}
		if e.SbFlags == nil { // CRIU takes it for one of an old image, and a mount is not read-only then
			return fmt.Errorf("a mount at %q without the flags of its file system", at)
		}
		if f, sb := e.GetFlags()&^mountFlags, e.GetSbFlags()&^superFlags; f != 0 || sb != 0 {
			return fmt.Errorf("a mount at %q with the flags %#x", at, f|sb)
		}
	}
	roots := rootsOf(entries)
	if len(roots) != 1 || clean(roots[0].GetMountpoint()) != "/" {
		return errors.New("the mounts are not one tree")
	}
	root := roots[0]          // its source is runc's to say
	var given []*mnt.MntEntry // runc gives their source
	for _, e := range entries {
		key, err := r.external(e)
		if err != nil {
			return err
		}
		if key || e == root {
			given = append(given, e)
		}
	}
	external, whole := map[*mnt.MntEntry]bool{}, map[uint32]bool{} // whole are the file systems that are given from their root
	for _, g := range given {
		external[g] = true
		if clean(g.GetRoot()) == "/" {
			whole[g.GetRootDev()] = true
		}
	}
	for _, e := range entries {
		switch {
		case external[e]:
		case !r.made(e) && !r.params(e, entries) || whole[e.GetRootDev()] || e.GetExtKey() != "": // a key that runc does not give
			kind := strings.ToLower(mnt.Fstype(e.GetFstype()).String())
			r.ask(Mounts, "a mount of %s (%s) at %s, which is in CRIU's images", e.GetSource(), kind, e.GetMountpoint())
		default:
			if err := r.options(e); err != nil {
				return err
			}
		}
		r.propagation(e, external[e])
	}
	r.masks(root, entries)
	return nil
}

// mountFlags and superFlags are those of mounts and of file systems. CRIU gives them to mount(2), for which others are other deeds, as MS_BIND is, which
// mounts any directory of the host.
const (
	mountFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSYMFOLLOW | unix.MS_NOATIME | unix.MS_NODIRATIME |
		unix.MS_RELATIME | unix.MS_STRICTATIME | unix.MS_UNBINDABLE | unix.MS_PRIVATE | unix.MS_SLAVE | unix.MS_SHARED
	superFlags = unix.MS_RDONLY | unix.MS_SYNCHRONOUS | unix.MS_MANDLOCK | unix.MS_DIRSYNC | unix.MS_SILENT | unix.MS_POSIXACL | unix.MS_I_VERSION | unix.MS_LAZYTIME
)

func clean(p string) string { return path.Clean("/" + p) }

// propagation asks for the grant for shared mounts, and for slaves that runc does not make. A mount that runc gives a source may be a slave of it: on a host with shared mounts, as under systemd,
// runc makes them so, and the source was granted with what is below it. If the specification has the mount private, CRIU makes no slave (package guard).
func (r *imageReviewer) propagation(e *mnt.MntEntry, given bool) {
	cgroup := e.GetFstype() == uint32(mnt.Fstype_CGROUP) || e.GetFstype() == uint32(mnt.Fstype_CGROUP2)
	if e.GetSharedId() != 0 || e.GetMasterId() != 0 && !given && !cgroup {
		r.ask(Privileges, "propagation of the mount at %s", e.GetMountpoint())
	}
}

// optionOf is an option of those file systems that the kernel makes anew: it says whose the files are, how large they may become, or how they
// are stored.
var optionOf = NewPattern(`^(size|nr_blocks|nr_inodes|mode|uid|gid|ptmxmode|max)=[0-9]+[kKmMgG%]?$|^(inode32|inode64|newinstance|noswap|huge=[a-z_]+|hidepid=[a-z0-9]+|subset=pid|xattr|none|nsdelegate|memory_[a-z]+|favordynmods|[a-z_,]*)$`)

// options reviews those of one that the kernel makes anew. One that the specification has may not be larger than there.
func (r *imageReviewer) options(e *mnt.MntEntry) error {
	size := int64(-1)
	for o := range strings.SplitSeq(e.GetOptions(), ",") {
		if e.GetFstype() == uint32(mnt.Fstype_TMPFS) && !optionOf.MatchString(o) {
			return fmt.Errorf("a mount at %q with the option %q", e.GetMountpoint(), o)
		}
		if s, ok := strings.CutPrefix(o, "size="); ok {
			size = bytesOf(s)
		}
	}
	if m := r.mounted[e.GetMountpoint()]; m.bytes > 0 && (size < 0 || size > m.bytes) {
		r.ask(Privileges, "%s of more than the %s that the specification gives it", e.GetMountpoint(), m.size)
	}
	return nil
}

// bytesOf reads a size as tmpfs does; -1 if it is none, or a part of memory.
func bytesOf(s string) int64 {
	digits := strings.TrimRight(s, "kKmMgG")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || len(s)-len(digits) > 1 {
		return -1
	}
	shift := map[string]uint{"": 0, "k": 10, "m": 20, "g": 30}[strings.ToLower(s[len(digits):])]
	if n > math.MaxInt64>>shift {
		return -1
	}
	return n << shift
}

// external reports whether the mount is one of the specification, whose source runc passes to CRIU by a key. CRIU refuses a key that runc does not pass. It takes the
// mount's flags from the image, so that the image must have each restricting flag of the specification.
func (r *imageReviewer) external(e *mnt.MntEntry) (bool, error) {
	key := e.GetExtKey()
	if key == "" {
		return false, nil
	}
	if _, ok := PlainDevices[key]; ok {
		return true, nil
	}
	if m := r.mounted[path.Clean(key)]; m.external {
		r.writable(e, m)
		if e.GetMountpoint() != path.Clean(key) {
			return false, fmt.Errorf("the mount of %q is at %q", key, e.GetMountpoint())
		}
		return true, nil
	}
	// Mounts of cgroup version 1 are one bind mount a hierarchy.
	for at, depth := path.Dir(path.Clean(key)), 0; at != "/" && at != "." && depth < maxCgroupDepth; at, depth = path.Dir(at), depth+1 {
		if m := r.mounted[at]; m.cgroup {
			r.writable(e, m)
			return true, nil
		}
	}
	return r.nodes[path.Clean(key)], nil
}

// specMount is what the specification has at one destination.
type specMount struct {
	external bool   // something that runc gives a source
	cgroup   bool   // of cgroups
	readonly bool   // one of these
	bytes    int64  // of the smallest tmpfs; 0: as many as it likes
	size     string // the same as it is there
}

// specMounts are the mounts of a specification, by their destination.
func specMounts(spec *specs.Spec) map[string]specMount {
	all := map[string]specMount{}
	for _, m := range spec.Mounts {
		at := path.Clean(m.Destination)
		s := all[at]
		if cgroup := m.Type == "cgroup"; cgroup || IsBindMount(m) {
			s.readonly = s.readonly || IsReadonlyMount(m.Options)
			s.external, s.cgroup = true, s.cgroup || cgroup
		}
		if m.Type == "tmpfs" {
			for _, o := range m.Options {
				if text, ok := strings.CutPrefix(o, "size="); ok {
					if n := bytesOf(text); n > 0 && (s.bytes == 0 || n < s.bytes) {
						s.bytes, s.size = n, text
					}
				}
			}
		}
		all[at] = s
	}
	return all
}

// writable asks for a mount that the specification has read-only and the image does not.
func (r *imageReviewer) writable(e *mnt.MntEntry, m specMount) {
	if m.readonly && e.GetFlags()&unix.MS_RDONLY == 0 {
		r.ask(Mounts, "%s writable, which the specification has read-only", e.GetExtKey())
	}
}

// made reports whether the kernel makes the file system anew, for the container's own namespaces, and it lies where
// its masks apply. CRIU takes a part of one from within it, and follows links there as the host has them, so that a part of one in which a container can make links
// is none of these.
func (r *imageReviewer) made(e *mnt.MntEntry) bool {
	at, within := path.Clean(e.GetMountpoint()), clean(e.GetRoot())
	readonly := e.GetFlags()&unix.MS_RDONLY != 0 || e.GetSbFlags()&unix.MS_RDONLY != 0
	switch e.GetFstype() {
	case uint32(mnt.Fstype_TMPFS), uint32(mnt.Fstype_MQUEUE):
		return within == "/"
	case uint32(mnt.Fstype_DEVPTS):
		return strings.Count(within, "/") == 1
	case uint32(mnt.Fstype_PROC):
		return at == "/proc" && within == "/" || readonly && at == path.Join("/proc", within) && !perProcess.MatchString(within)
	case uint32(mnt.Fstype_SYSFS):
		return readonly && at == path.Join("/sys", within)
	case uint32(mnt.Fstype_CGROUP), uint32(mnt.Fstype_CGROUP2):
		return readonly && strings.HasPrefix(at+"/", "/sys/fs/cgroup/")
	}
	return false
}

// paramsFile tells NVIDIA's libraries whether to make device nodes.
const paramsFile = "/proc/driver/nvidia/params"

// params reports whether a mount was made by the hook disable-device-node-modification, which nvidia-ctk writes into CDI files. The hook mounts a regular file of a tmpfs in the container over
// [paramsFile]. Like the root file system, the file belongs to the container. It must be at the top of the tmpfs and no symlink, so that CRIU can mount nothing else. CRIU fills the tmpfs
// from the image that is named after its device.
// Source: NVIDIA container toolkit, cmd/nvidia-cdi-hook/disable-device-node-modification; CRIU 4.2, criu/filesystems.c, tmpfs_restore.
func (r *imageReviewer) params(e *mnt.MntEntry, entries []*mnt.MntEntry) bool {
	const tmpfs = uint32(mnt.Fstype_TMPFS)
	within := clean(e.GetRoot())
	if e.GetMountpoint() != paramsFile || e.GetFstype() != tmpfs || within == "/" || strings.Count(within, "/") != 1 {
		return false
	}
	if !slices.ContainsFunc(entries, func(o *mnt.MntEntry) bool {
		return o.GetRootDev() == e.GetRootDev() && o.GetFstype() == tmpfs && clean(o.GetRoot()) == "/"
	}) {
		return false
	}
	if !r.nvidia.read { // thousands of mounts may name one, and a container has no more
		r.nvidia.read, r.nvidia.of = true, e.GetRootDev()
		if files, err := entriesOf(r.images, fmt.Sprintf("tmpfs-dev-%d.tar.gz.img", e.GetRootDev()), new(int64)); err == nil {
			r.nvidia.files = files
		}
	}
	return r.nvidia.of == e.GetRootDev() && r.nvidia.files[within].kind == unix.S_IFREG
}

// perProcess are directories of /proc whose links lead anywhere.
var perProcess = NewPattern(`^/([0-9]+|self|thread-self)(/|$)`)

// masks asks where one of those can be reached. What covers what follows from the tree of the mounts, and not from their paths alone: a mount may be covered
// by another at its own path, or above.
func (r *imageReviewer) masks(root *mnt.MntEntry, entries []*mnt.MntEntry) {
	whole := 0
	for _, e := range entries {
		if e.GetFstype() == uint32(mnt.Fstype_PROC) && path.Clean("/"+e.GetRoot()) == "/" {
			whole++
		}
	}
	switch {
	case whole == 0:
		return
	case whole > 1:
		r.ask(Privileges, "%d mounts of proc, one of which covers what masks the other", whole)
	}
	t := newMountTree(root, entries)
	for _, file := range HostProcFiles {
		if !r.exists(file) {
			continue
		}
		top := t.at(file)
		readonly := top.GetFlags()&unix.MS_RDONLY != 0 && path.Clean(top.GetMountpoint()) == file
		if top.GetFstype() == uint32(mnt.Fstype_PROC) && !readonly {
			r.ask(Privileges, "%s as the kernel has it, which the container's mounts do not cover", file)
		}
	}
}
