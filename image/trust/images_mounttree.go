package trust

import (
	"path"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
)

// mountTree is which mount is on which.
type mountTree struct {
	root  *mnt.MntEntry
	on    map[mountPlace]*mnt.MntEntry // what is on top there
	paths *mountPath                   // the paths of all places
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
	t := mountTree{root: root, on: make(map[mountPlace]*mnt.MntEntry, len(entries)), paths: &mountPath{}}
	for _, e := range entries {
		if e != root {
			t.on[mountPlace{e.GetParentMntId(), path.Clean(e.GetMountpoint())}] = e
		}
	}
	t.settle()
	for place := range t.on {
		t.paths.add(place.path)
	}
	return t
}

// settle has each place lead to the mount that is on top: thousands may be at one path, and a walk comes there often.
func (t mountTree) settle() {
	settled := make(map[mountPlace]bool, len(t.on))
	for place := range t.on {
		way := map[mountPlace]bool{}
		for !settled[place] && !way[place] {
			way[place] = true
			next := mountPlace{t.on[place].GetMntId(), place.path}
			if t.on[next] == nil {
				break
			}
			place = next
		}
		top := t.on[place] // of a circle, any
		for p := range way {
			t.on[p], settled[p] = top, true
		}
	}
}

// at returns the mount that a walk to an absolute, clean path ends on.
func (t mountTree) at(p string) *mnt.MntEntry {
	now, here := t.over(t.root, "/"), t.paths
	for end := 0; ; {
		rest := strings.TrimLeft(p[end:], "/")
		name, _, _ := strings.Cut(rest, "/")
		if here = here.next(name); here == nil {
			return now // nothing is mounted below
		}
		end = len(p) - len(rest) + len(name)
		if here.mounted {
			now = t.over(now, p[:end])
		}
	}
}

// over returns the mount that covers a path of a mount, or that mount itself.
func (t mountTree) over(m *mnt.MntEntry, p string) *mnt.MntEntry {
	if top := t.on[mountPlace{m.GetMntId(), p}]; top != nil {
		return top
	}
	return m
}

// mountPath is a path at or below which something is mounted.
type mountPath struct {
	below   map[string]*mountPath // by the next name
	mounted bool                  // here
}

// next may be called on nil.
func (m *mountPath) next(name string) *mountPath {
	if m == nil {
		return nil
	}
	return m.below[name]
}

func (m *mountPath) add(p string) {
	for _, name := range parts(p) {
		next := m.below[name]
		if next == nil {
			if m.below == nil {
				m.below = map[string]*mountPath{}
			}
			next = &mountPath{}
			m.below[name] = next
		}
		m = next
	}
	m.mounted = true
}
