package trust

import (
	"path"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/cgroup"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// cgroups: runc tells CRIU to put the container's cgroup in the place of the one directory at the top of each hierarchy;
// whatever is not below it would be a cgroup of the host.
func (r *imageReviewer) cgroups() error {
	entries, err := read[cgroup.CgroupEntry](r.dir, "cgroup.img")
	if err != nil {
		return err
	}
	for _, e := range entries {
		top := map[string]string{} // of a controller
		for _, c := range e.GetControllers() {
			if len(c.GetDirs()) > 1 {
				r.ask(Privileges, "%d cgroups in the hierarchy of %s", len(c.GetDirs()), strings.Join(c.GetCnames(), ","))
			}
			for _, d := range c.GetDirs() {
				if path.Clean("/"+d.GetDirName()) == "/" {
					r.ask(Privileges, "the root cgroup of %s", strings.Join(c.GetCnames(), ","))
				}
				for _, name := range c.GetCnames() {
					top[name] = path.Clean("/" + d.GetDirName())
				}
				r.children(d)
			}
		}
		for _, set := range e.GetSets() {
			for _, member := range set.GetCtls() {
				root, managed := top[member.GetName()]
				at := member.GetPath()
				if managed && (slices.Contains(strings.Split(at, "/"), "..") || !below(path.Clean("/"+at), root)) {
					r.ask(Privileges, "the cgroup %s of %s, outside of the container's", at, member.GetName())
				}
			}
		}
	}
	return nil
}

// children reviews names of cgroups below the container's.
func (r *imageReviewer) children(d *cgroup.CgroupDirEntry) {
	for _, c := range d.GetChildren() {
		if slices.Contains(strings.Split(c.GetDirName(), "/"), "..") {
			r.ask(Privileges, "the cgroup %s, outside of the container's", c.GetDirName())
		}
		r.children(c)
	}
}

// below tells whether the clean path p is root or in it.
func below(p, root string) bool {
	return p == root || strings.HasPrefix(p, root+"/")
}

// deviceAt matches the device at a path of the container.
func deviceAt(at string) func(specs.LinuxDevice) bool {
	return func(d specs.LinuxDevice) bool { return path.Clean(d.Path) == path.Clean(at) }
}
