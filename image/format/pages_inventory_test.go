package format

import (
	"encoding/binary"
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
	return AppendRecord(binary.LittleEndian.AppendUint32(nil, magicInventory), raw)
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
		got, err := ReadNetworkLock(put(t, t.TempDir(), "inventory.img", test.file))
		if got != test.want || test.damaged != (err != nil) || err != nil && !errdefs.IsDataLoss(err) {
			t.Errorf("%s gives %d, %v", name, got, err)
		}
	}
}
