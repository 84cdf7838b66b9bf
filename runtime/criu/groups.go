package criu

import (
	"fmt"
	"path"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	"google.golang.org/protobuf/proto"
)

// maxGroups bounds the cgroups of a container, in each hierarchy.
const maxGroups = 4096

// Groups lists the cgroups that CRIU makes for a restore from the images in dir, as paths in their hierarchies. A cgroup comes before those in it, and names are listed once.
func Groups(dir string) (groups []string, err error) {
	seen := map[string]bool{}
	var add func(above string, d *cgroup.CgroupDirEntry) error
	add = func(above string, d *cgroup.CgroupDirEntry) error {
		at := path.Join("/", above, path.Join("/", d.GetDirName()))
		if !seen[at] {
			seen[at] = true
			groups = append(groups, at)
		}
		if len(groups) > maxGroups {
			return fmt.Errorf("more than %d cgroups", maxGroups)
		}
		for _, below := range d.GetChildren() {
			if err := add(at, below); err != nil {
				return err
			}
		}
		return nil
	}
	err = eachRecord(dir, "cgroup.img", func(data []byte) error {
		var e cgroup.CgroupEntry
		if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(data, &e); err != nil {
			return err
		}
		for _, controller := range e.GetControllers() {
			for _, d := range controller.GetDirs() {
				if err := add("/", d); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return groups, err
}
