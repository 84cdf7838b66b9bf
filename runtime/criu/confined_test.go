package criu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"google.golang.org/protobuf/proto"
)

// TestCheckWritesMounts: a part of the host's file system that another mount has brought, as on hosts whose driver's files are mounted below /usr, is no file system that CRIU makes.
func TestCheckWritesMounts(t *testing.T) {
	for kind, fits := range map[mnt.Fstype]bool{mnt.Fstype_UNSUPPORTED: true, mnt.Fstype_TMPFS: true, mnt.Fstype_DEVTMPFS: false, mnt.Fstype_AUTO: false, mnt.Fstype_OVERLAYFS: false} {
		for key, fits := range map[string]bool{"": fits, "/usr": true} {
			dir := t.TempDir()
			code, at, none, number := uint32(kind), "/usr/share/file", "", uint32(7)
			entry := &mnt.MntEntry{Fstype: &code, MntId: &number, RootDev: &number, ParentMntId: &number, Flags: &number, Root: &at, Mountpoint: &at, Source: &none, Options: &none}
			if key != "" {
				entry.ExtKey = &key
			}
			record, err := proto.Marshal(entry)
			if err != nil {
				t.Fatal(err)
			}
			image := append(binary.LittleEndian.AppendUint32([]byte("magicnum"), uint32(len(record))), record...)
			if err := os.WriteFile(filepath.Join(dir, "mountpoints-13.img"), image, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := CheckWrites(dir, func(string) bool { return false }); (err == nil) != fits {
				t.Errorf("%s, key %q: %v", kind, key, err)
			}
		}
	}
}
