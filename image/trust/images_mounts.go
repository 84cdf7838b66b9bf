package trust

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"golang.org/x/sys/unix"
)

// mounts: what the images mount must be the rootfs, what the specification mounts from outside, or a file system that the
// kernel makes anew; and the files of /proc that every container has masked or read-only must be so.
func (r *imageReviewer) mounts() error {
	names, err := r.files("mountpoints-*.img")
	if err != nil {
		return err
	}
	for _, name := range names {
		entries, err := read[mnt.MntEntry](r.dir, name)
		if err != nil {
			return err
		}
		if err := r.tree(entries); err != nil {
			return &DamagedError{File: name, Err: err}
		}
	}
	return nil
}

// tree reviews the mounts of one mount namespace.
func (r *imageReviewer) tree(entries []*mnt.MntEntry) error {
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
	}
	var root *mnt.MntEntry // its source is runc's to say
	for _, e := range entries {
		switch {
		case ids[e.GetParentMntId()] && e.GetParentMntId() != e.GetMntId():
		case root != nil || path.Clean("/"+e.GetMountpoint()) != "/":
			return errors.New("the mounts are not one tree")
		default:
			root = e
		}
	}
	if root == nil {
		return errors.New("there is no root mount")
	}
	for _, e := range entries {
		if e != root && !r.external(e) && !made(e) {
			kind := strings.ToLower(mnt.Fstype(e.GetFstype()).String())
			r.ask(Mounts, "a mount of %s (%s) at %s, which is in CRIU's images", e.GetSource(), kind, e.GetMountpoint())
		}
	}
	r.masks(root, entries)
	return nil
}

// external tells whether runc gives the mount its source, by the specification. CRIU refuses keys that runc does not give.
func (r *imageReviewer) external(e *mnt.MntEntry) bool {
	key := e.GetExtKey()
	if key == "" {
		return false
	}
	if _, ok := ordinaryDevices[key]; ok {
		return true
	}
	for _, m := range r.spec.Mounts {
		if path.Clean(m.Destination) == path.Clean(key) && (bind(m) || m.Type == "cgroup") {
			return true
		}
	}
	// Mounts of cgroup version 1 are one bind mount a hierarchy.
	for _, m := range r.spec.Mounts {
		if m.Type == "cgroup" && strings.HasPrefix(path.Clean(key), path.Clean(m.Destination)+"/") {
			return true
		}
	}
	return r.spec.Linux != nil && slices.ContainsFunc(r.spec.Linux.Devices, deviceAt(key))
}

// made tells whether the kernel makes the file system anew, for the container's own namespaces, and it lies where
// its masks apply.
func made(e *mnt.MntEntry) bool {
	at, within := path.Clean(e.GetMountpoint()), path.Clean("/"+e.GetRoot())
	readonly := e.GetFlags()&unix.MS_RDONLY != 0 || e.GetSbFlags()&unix.MS_RDONLY != 0
	switch e.GetFstype() {
	case uint32(mnt.Fstype_TMPFS), uint32(mnt.Fstype_DEVPTS), uint32(mnt.Fstype_MQUEUE):
		return true
	case uint32(mnt.Fstype_PROC):
		return at == "/proc" && within == "/" || readonly && at == path.Join("/proc", within)
	case uint32(mnt.Fstype_SYSFS):
		return readonly && at == path.Join("/sys", within)
	case uint32(mnt.Fstype_CGROUP), uint32(mnt.Fstype_CGROUP2):
		return readonly && strings.HasPrefix(at+"/", "/sys/fs/cgroup/")
	}
	return false
}

// dangerous are the files of /proc that let a container's root reach the host, of those that are masked or read-only.
var dangerous = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/kcore", "/proc/keys", "/proc/timer_list"}

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
	for _, file := range dangerous {
		if !r.host.exists(file) {
			continue
		}
		top := t.at(file)
		readonly := top.GetFlags()&unix.MS_RDONLY != 0 && path.Clean(top.GetMountpoint()) == file
		if top.GetFstype() == uint32(mnt.Fstype_PROC) && !readonly {
			r.ask(Privileges, "%s as the kernel has it, which the container's mounts do not cover", file)
		}
	}
}

// mountTree is which mount is on which.
type mountTree struct {
	root *mnt.MntEntry
	on   map[mountPlace]*mnt.MntEntry
}

// mountPlace is where something is mounted: on which mount, and at which of its paths.
type mountPlace struct {
	parent uint32
	path   string
}

// newMountTree takes the last of several mounts at one place, as CRIU mounts them one after the other.
func newMountTree(root *mnt.MntEntry, entries []*mnt.MntEntry) mountTree {
	t := mountTree{root: root, on: make(map[mountPlace]*mnt.MntEntry, len(entries))}
	for _, e := range entries {
		if e != root {
			t.on[mountPlace{e.GetParentMntId(), path.Clean(e.GetMountpoint())}] = e
		}
	}
	return t
}

// at gives the mount that a walk to an absolute, clean path ends on.
func (t mountTree) at(p string) *mnt.MntEntry {
	now := t.root
	for i := 0; i <= len(p); i++ {
		if i < len(p) && p[i] != '/' {
			continue
		}
		for seen := 0; seen <= len(t.on); seen++ { // a mount may be covered at its own root, though not by itself
			next, ok := t.on[mountPlace{now.GetMntId(), cmp.Or(p[:i], "/")}]
			if !ok {
				break
			}
			now = next
		}
	}
	return now
}
