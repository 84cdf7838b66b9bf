package trust

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
)

// cgroups: runc tells CRIU to put the container's cgroup in the place of the one directory at the top of each hierarchy;
// whatever is not below it would be a cgroup of the host. CRIU makes paths of all names, of properties and controllers as well, and finds the hierarchy
// of a member by searching for its name within those of the controllers. Source: CRIU 4.2, criu/cgroup.c.
func (r *imageReviewer) cgroups() error {
	const name = "cgroup.img"
	entries, err := read[cgroup.CgroupEntry](r.images, name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := r.hierarchies(e); err != nil {
			return &DamagedError{File: name, Err: err}
		}
	}
	return nil
}

// controllerName is that of a controller for which runc tells CRIU a place, or of the hierarchy of version 2, which has none.
var controllerName = NewPattern(`^(cpuset|cpu|cpuacct|blkio|memory|devices|freezer|net_cls|net_prio|perf_event|hugetlb|pids|rdma|misc|name=systemd|)$`)

func (r *imageReviewer) hierarchies(e *cgroup.CgroupEntry) error {
	top := map[string]string{} // of a hierarchy, by the name that a member has
	for _, c := range e.GetControllers() {
		all := strings.Join(c.GetCnames(), ",")
		for _, name := range c.GetCnames() {
			if !controllerName.MatchString(name) {
				return fmt.Errorf("a cgroup controller %q", name)
			}
		}
		if _, twice := top[all]; twice {
			return fmt.Errorf("two hierarchies of %q", all)
		}
		top[all] = ""
		if len(c.GetDirs()) > 1 {
			r.ask(Privileges, "%d cgroups in the hierarchy of %s", len(c.GetDirs()), all)
		}
		for _, d := range c.GetDirs() {
			if path.Clean("/"+d.GetDirName()) == "/" {
				r.ask(Privileges, "the root cgroup of %s", all)
			}
			top[all] = path.Clean("/" + d.GetDirName())
			if top[all] != "/" && top[all] != "/"+d.GetDirName() {
				return fmt.Errorf("a cgroup of the name %q", d.GetDirName())
			}
			if err := directory(d, 0); err != nil {
				return err
			}
		}
	}
	placed := map[string]bool{} // hierarchies in which a process is: CRIU puts the container's cgroup only in the place of one that it finds there
	var members []string        // of the first set: CRIU takes all for alike
	for i, set := range e.GetSets() {
		var names []string
		for _, member := range set.GetCtls() {
			names = append(names, member.GetName())
		}
		if i == 0 {
			members = names
		}
		if !slices.Equal(names, members) {
			return fmt.Errorf("processes in hierarchies %q, and others in %q", members, names)
		}
		for _, member := range set.GetCtls() {
			root, managed := top[member.GetName()]
			at := member.GetPath()
			placed[member.GetName()] = true
			if err := inside(at); err != nil {
				return err
			}
			if !managed {
				return fmt.Errorf("a process in the hierarchy of %q, of which there is no cgroup", member.GetName())
			}
			if root != "" && !below(at, root) {
				r.ask(Privileges, "the cgroup %s of %s, outside of the container's", at, member.GetName())
			}
			if cut := member.GetCgnsPrefix(); cut != 0 && (root == "" || int64(cut) != int64(len(root))) {
				return fmt.Errorf("%d bytes of the cgroup %s of %s, which are not its top", cut, at, member.GetName())
			}
		}
	}
	for name, root := range top {
		if root != "" && !placed[name] {
			return fmt.Errorf("a cgroup %s of %q, in which no process is", root, name)
		}
	}
	return nil
}

// maxCgroupDepth bounds how far down reviewed cgroups go.
const maxCgroupDepth = 64

// releaseAgent is the file by which the kernel runs a program of the host's.
const releaseAgent = "release_agent"

// propertyName is that of a file of a cgroup.
var propertyName = NewPattern(`^[A-Za-z0-9_]+(\.[A-Za-z0-9_-]+)*$`)

// directory reviews a cgroup and those below it.
func directory(d *cgroup.CgroupDirEntry, depth int) error {
	if depth > maxCgroupDepth {
		return fmt.Errorf("cgroups within cgroups, more than %d", maxCgroupDepth)
	}
	if err := inside(d.GetDirName()); err != nil {
		return err
	}
	if depth > 0 && (d.GetDirName() == "" || strings.Contains(d.GetDirName(), "/")) {
		return fmt.Errorf("a cgroup of the name %q", d.GetDirName())
	}
	for _, p := range d.GetProperties() {
		if name := p.GetName(); !propertyName.MatchString(name) || name == releaseAgent {
			return fmt.Errorf("a property of a cgroup of the name %q", name)
		}
	}
	for _, c := range d.GetChildren() {
		if err := directory(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// below reports whether the clean path p is root or in it.
func below(p, root string) bool {
	return p == root || strings.HasPrefix(p, root+"/")
}
