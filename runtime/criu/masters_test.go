package criu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

func mounted(at, key string, shared, master uint32) *mnt.MntEntry {
	z := proto.Uint32(0)
	m := &mnt.MntEntry{Fstype: z, MntId: z, RootDev: z, ParentMntId: z, Flags: z, Root: proto.String("/"), Mountpoint: &at, Source: proto.String(""), Options: proto.String("")}
	if key != "" {
		m.ExtKey = &key
	}
	if shared != 0 {
		m.SharedId = &shared
	}
	if master != 0 {
		m.MasterId = &master
	}
	return m
}

// TestSeparateMasters: each mount that is given a source gets a master of its own, or none where that source has no propagation.
func TestSeparateMasters(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"mountpoints-12.img": image(t, mounted("/", "", 0, 5), mounted("/data", "/data", 0, 5), mounted("/etc/settings", "/etc/settings", 0, 5), mounted("/private", "/private", 0, 5),
			mounted("/shared", "/data", 9, 5), mounted("/own", "", 0, 9), mounted("/absent", "/absent", 0, 5), mounted("/none", "/data", 0, 0)),
		"mountpoints-13.img": image(t, mounted("/", "", 0, 0), mounted("/data", "/data", 0, 0)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	images, err := SeparateMasters(dir, map[string]bool{RootKey: true, "/data": true, "/etc/settings": true, "/private": false})
	if err != nil || len(images) != 1 {
		t.Fatalf("%d images are others: %v", len(images), err)
	}
	again := t.TempDir()
	if err := os.WriteFile(filepath.Join(again, "mountpoints-12.img"), images["mountpoints-12.img"], 0o600); err != nil {
		t.Fatal(err)
	}
	type ids struct{ shared, master uint32 }
	want := map[string]ids{"/": {0, 10}, "/data": {0, 11}, "/etc/settings": {0, 12}, "/private": {}, "/shared": {9, 5}, "/own": {0, 9}, "/absent": {0, 5}, "/none": {}}
	err = eachRecord(again, "mountpoints-12.img", func(data []byte) error {
		var m mnt.MntEntry
		if err := proto.Unmarshal(data, &m); err != nil {
			return err
		}
		at := m.GetMountpoint()
		if w, has := want[at], (ids{m.GetSharedId(), m.GetMasterId()}); has != w {
			t.Errorf("%s has %+v, want %+v", at, has, w)
		}
		delete(want, at)
		return nil
	})
	if err != nil || len(want) > 0 {
		t.Errorf("%v are missing: %v", want, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mountpoints-14.img"), []byte("cut off here"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := SeparateMasters(dir, nil); !errdefs.IsDataLoss(err) {
		t.Errorf("an image that is cut off: %v", err)
	}
}
