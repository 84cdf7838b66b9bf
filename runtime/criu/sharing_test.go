package criu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// TestForgetSharing: a process that shared all its memory does not any more, and other advice of it stays. One that has advised some memory to be shared does so still.
func TestForgetSharing(t *testing.T) {
	const huge = 1 << unix.MADV_HUGEPAGE
	for name, test := range map[string]struct{ heap, stack, wantHeap, wantStack uint64 }{
		"shared all":  {mergeable | huge, mergeable, huge, 0},
		"shared some": {mergeable | huge, 0, mergeable | huge, 0},
		"shared none": {huge, 0, huge, 0},
	} {
		dir := t.TempDir()
		mapping := func(start uint64, advice uint64) *vma.VmaEntry {
			v := &vma.VmaEntry{Start: proto.Uint64(start), End: proto.Uint64(start + 0x2000), Pgoff: new(uint64), Shmid: new(uint64), Prot: proto.Uint32(3), Flags: new(uint32), Status: new(uint32), Fd: proto.Int64(-1)}
			if advice != 0 {
				v.Madv = &advice
			}
			return v
		}
		entry := &mm.MmEntry{
			MmStartCode: proto.Uint64(0x1000), MmEndCode: new(uint64), MmStartData: new(uint64), MmEndData: new(uint64), MmStartStack: proto.Uint64(0x7ff1000), MmStartBrk: new(uint64), MmBrk: new(uint64),
			MmArgStart: new(uint64), MmArgEnd: new(uint64), MmEnvStart: new(uint64), MmEnvEnd: new(uint64), ExeFileId: new(uint32),
			Vmas: []*vma.VmaEntry{mapping(0x400000, test.heap), mapping(0x7ff0000, test.stack)},
		}
		file := filepath.Join(dir, "mm-1.img")
		if err := os.WriteFile(file, image(t, entry), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ForgetSharing(dir); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all, err := decodeImage[mm.MmEntry](data)
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %d records, %v", name, len(all), err)
		}
		if got := all[0]; got.Vmas[0].GetMadv() != test.wantHeap || got.Vmas[1].GetMadv() != test.wantStack || got.GetMmStartCode() != 0x1000 {
			t.Errorf("%s: it has become %v", name, got)
		}
	}
	if err := ForgetSharing(t.TempDir()); err != nil {
		t.Errorf("without images: %v", err)
	}
}
