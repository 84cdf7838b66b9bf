package pages

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// inventoryOf is an inventory.img.
func inventoryOf(t testing.TB, e *inventory.InventoryEntry) []byte {
	t.Helper()
	raw, err := proto.MarshalOptions{AllowPartial: true}.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	b := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, magicInventory), uint32(len(raw)))
	return append(b, raw...)
}

func TestReadNetworkLock(t *testing.T) {
	entry := func(method *uint32) []byte {
		return inventoryOf(t, &inventory.InventoryEntry{ImgVersion: proto.Uint32(2), NetworkLockMethod: method})
	}
	for name, test := range map[string]struct {
		file    []byte // nil: there is none
		want    NetworkLock
		damaged bool
	}{
		"no file":      {nil, LockIPTables, false},
		"says nothing": {entry(nil), LockIPTables, false},
		"iptables":     {entry(proto.Uint32(0)), LockIPTables, false},
		"nftables":     {entry(proto.Uint32(1)), LockNFTables, false},
		"skip":         {entry(proto.Uint32(2)), LockSkip, false},
		"empty":        {[]byte{}, 0, true},
		"no record":    {entry(nil)[:4], 0, true},
		"cut short":    {entry(nil)[:9], 0, true},
		"other image":  {image(t, magicCore, []byte{}), 0, true},
	} {
		dir := t.TempDir()
		if test.file != nil {
			if err := os.WriteFile(filepath.Join(dir, "inventory.img"), test.file, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadNetworkLock(dir)
		if got != test.want || test.damaged != (err != nil) || err != nil && !errdefs.IsDataLoss(err) {
			t.Errorf("%s gives %d, %v", name, got, err)
		}
	}
}

func FuzzNetworkLock(f *testing.F) {
	f.Add(inventoryOf(f, &inventory.InventoryEntry{NetworkLockMethod: proto.Uint32(1)}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := readNetworkLock("x", bytes.NewReader(b)); err != nil && !errdefs.IsDataLoss(err) {
			t.Errorf("gives %v", err)
		}
	})
}
