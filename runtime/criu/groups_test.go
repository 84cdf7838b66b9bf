package criu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/cgroup"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/format"
)

func TestGroups(t *testing.T) {
	dir := t.TempDir()
	write := func(e *cgroup.CgroupEntry) {
		data, err := proto.MarshalOptions{AllowPartial: true}.Marshal(e)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup.img"), format.AppendRecord(format.ImageHead(0), data), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	named := func(name string, below ...*cgroup.CgroupDirEntry) *cgroup.CgroupDirEntry {
		return &cgroup.CgroupDirEntry{DirName: &name, Children: below}
	}
	controller := func(dirs ...*cgroup.CgroupDirEntry) *cgroup.CgControllerEntry {
		return &cgroup.CgControllerEntry{Dirs: dirs}
	}
	if got, err := Groups(dir); err != nil || len(got) > 0 {
		t.Errorf("without cgroups: %q, %v", got, err)
	}
	write(&cgroup.CgroupEntry{Controllers: []*cgroup.CgControllerEntry{controller(named("a/b", named("c", named("d")))), controller(named("a/b"), named("../../x", named("..")))}})
	if got, err := Groups(dir); err != nil || !slices.Equal(got, []string{"/a/b", "/a/b/c", "/a/b/c/d", "/x"}) {
		t.Errorf("%q, %v", got, err)
	}
	var many []*cgroup.CgroupDirEntry
	for i := range maxGroups + 1 {
		many = append(many, named(fmt.Sprint(i)))
	}
	write(&cgroup.CgroupEntry{Controllers: []*cgroup.CgControllerEntry{controller(many...)}})
	if _, err := Groups(dir); err == nil {
		t.Error("too many are listed")
	}
}
