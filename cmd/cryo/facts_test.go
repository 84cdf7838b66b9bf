package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
)

// TestRecordLock records what a restore needs of nftables, for containers whose network CRIU has locked.
func TestRecordLock(t *testing.T) {
	const inventoryMagic = 0x58313116
	dump := func(method uint32) string {
		raw, err := proto.MarshalOptions{AllowPartial: true}.Marshal(&inventory.InventoryEntry{NetworkLockMethod: &method})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		head := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, inventoryMagic), uint32(len(raw)))
		if err := os.WriteFile(filepath.Join(dir, "inventory.img"), append(head, raw...), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	own := &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}}}
	for name, test := range map[string]struct {
		linux  *specs.Linux
		method uint32
		want   bool
	}{
		"nftables":             {own, 1, true},
		"iptables":             {own, 0, false},
		"skip":                 {own, 2, false},
		"the host's network":   {&specs.Linux{}, 1, false},
		"no linux, no network": {nil, 1, false},
	} {
		spec, err := json.Marshal(specs.Spec{Linux: test.linux})
		if err != nil {
			t.Fatal(err)
		}
		c := image.Config{Spec: spec}
		if err := recordLock(&c, dump(test.method)); err != nil || slices.Contains(c.Host.Features, fit.NFTablesLock) != test.want {
			t.Errorf("%s: features %v, %v", name, c.Host.Features, err)
		}
	}
	spec, _ := json.Marshal(specs.Spec{Linux: own}) // it marshals above
	dir := dump(1)
	if err := os.Truncate(filepath.Join(dir, "inventory.img"), 6); err != nil {
		t.Fatal(err)
	}
	if err := recordLock(&image.Config{Spec: spec}, dir); !errdefs.IsDataLoss(err) {
		t.Errorf("damaged images give %v", err)
	}
}
