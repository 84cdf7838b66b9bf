package trust

import (
	"cmp"
	"path"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
)

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

// rootsOf are the mounts that are on no other.
func rootsOf(entries []*mnt.MntEntry) (roots []*mnt.MntEntry) {
	ids := map[uint32]bool{}
	for _, e := range entries {
		ids[e.GetMntId()] = true
	}
	for _, e := range entries {
		if !ids[e.GetParentMntId()] || e.GetParentMntId() == e.GetMntId() {
			roots = append(roots, e)
		}
	}
	return roots
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
		if i == len(p) || p[i] == '/' {
			now = t.over(now, cmp.Or(p[:i], "/"))
		}
	}
	return now
}

// over gives the mount that covers a path of a mount, or that mount itself.
func (t mountTree) over(m *mnt.MntEntry, p string) *mnt.MntEntry {
	for seen := 0; seen <= len(t.on); seen++ { // a mount may be covered at its own root, though not by itself
		next, ok := t.on[mountPlace{m.GetMntId(), p}]
		if !ok {
			break
		}
		m = next
	}
	return m
}
