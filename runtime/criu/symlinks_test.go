package criu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// TestFollowNone: links are not followed in the host's directories, wherever they are mounted, and are elsewhere.
func TestFollowNone(t *testing.T) {
	dir := t.TempDir()
	image := []byte("magicnum")
	entry := func(device uint32, at, external string) {
		e := &mnt.MntEntry{Fstype: new(uint32), MntId: new(uint32), RootDev: &device, ParentMntId: new(uint32), Flags: new(uint32(unix.MS_RDONLY)), Root: new("/"), Mountpoint: &at, Source: new(""), Options: new("")}
		if external != "" {
			e.ExtKey = &external
		}
		record, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		image = append(binary.LittleEndian.AppendUint32(image, uint32(len(record))), record...)
	}
	entry(1, "/", "")
	entry(2, "/proc", "")
	entry(3, "/again", "")
	entry(3, "/data", "/data")
	file := filepath.Join(dir, "mountpoints-12.img")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := FollowNone(dir); err != nil {
		t.Fatal(err)
	}
	follows := map[string]bool{}
	err := changeRecords(dir, "mountpoints-*.img", func(all []*mnt.MntEntry) error {
		for _, e := range all {
			if e.GetFlags()&unix.MS_RDONLY == 0 {
				t.Errorf("%s lost a flag", e.GetMountpoint())
			}
			follows[e.GetMountpoint()] = e.GetFlags()&unix.MS_NOSYMFOLLOW == 0
		}
		return nil
	})
	if err != nil || len(follows) != 4 || !follows["/"] || !follows["/proc"] || follows["/again"] || follows["/data"] {
		t.Errorf("%v, %v", follows, err)
	}
}
