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

// TestAdaptSharing: a process that shared all its memory does not any more, and other advice of it stays. One that has advised some memory to be shared does so still.
func TestAdaptSharing(t *testing.T) {
	const huge = 1 << unix.MADV_HUGEPAGE
	for name, test := range map[string]struct{ heap, stack, wantHeap, wantStack uint64 }{
		"shared all":  {mergeable | huge, mergeable, huge, 0},
		"shared some": {mergeable | huge, 0, mergeable | huge, 0},
		"shared none": {huge, 0, huge, 0},
	} {
		dir := t.TempDir()
		entry := memory(0x7ff1000)
		entry.Vmas = []*vma.VmaEntry{vmaOf(0x400000, test.heap), vmaOf(0x7ff0000, test.stack)}
		if err := os.WriteFile(filepath.Join(dir, "mm-1.img"), image(t, entry), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := AdaptMemory(dir, false); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := adapted(t, dir); got.Vmas[0].GetMadv() != test.wantHeap || got.Vmas[1].GetMadv() != test.wantStack || got.GetMmStartCode() != 0x1000 {
			t.Errorf("%s: it has become %v", name, got)
		}
	}
	if err := AdaptMemory(t.TempDir(), false); err != nil {
		t.Errorf("without images: %v", err)
	}
}

// TestAdaptReserved checks that MAP_NORESERVE is added to a private mapping that is larger than the memory and swap of this host, and that no other mapping changes.
func TestAdaptReserved(t *testing.T) {
	most, err := hostMemory()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	type mapped struct {
		size        uint64
		flags, want uint32
	}
	const private, shared, none = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS, unix.MAP_SHARED | unix.MAP_ANONYMOUS, unix.MAP_NORESERVE
	all := []mapped{{most, private, private}, {most + 4096, private, private | none}, {most + 4096, shared, shared}, {most + 4096, private | none, private | none}}
	entry := memory(0x7ff1000)
	for i, m := range all {
		v := vmaOf(uint64(i+1)<<46, 0)
		v.End, v.Flags = proto.Uint64(v.GetStart()+m.size), &m.flags
		entry.Vmas = append(entry.Vmas, v)
	}
	if err := os.WriteFile(filepath.Join(dir, "mm-1.img"), image(t, entry), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := AdaptMemory(dir, true); err != nil {
		t.Fatal(err)
	}
	for i, v := range adapted(t, dir).GetVmas() {
		if v.GetFlags() != all[i].want {
			t.Errorf("mapping %d: flags %#x, want %#x", i, v.GetFlags(), all[i].want)
		}
	}
}

// memory is a process's, without mappings.
func memory(stack uint64) *mm.MmEntry {
	return &mm.MmEntry{
		MmStartCode: proto.Uint64(0x1000), MmEndCode: new(uint64), MmStartData: new(uint64), MmEndData: new(uint64), MmStartStack: &stack, MmStartBrk: new(uint64), MmBrk: new(uint64),
		MmArgStart: new(uint64), MmArgEnd: new(uint64), MmEnvStart: new(uint64), MmEnvEnd: new(uint64), ExeFileId: new(uint32),
	}
}

// vmaOf is a mapping of two pages, with some advice.
func vmaOf(start uint64, advice uint64) *vma.VmaEntry {
	v := &vma.VmaEntry{Start: proto.Uint64(start), End: proto.Uint64(start + 0x2000), Pgoff: new(uint64), Shmid: new(uint64), Prot: proto.Uint32(3), Flags: new(uint32), Status: new(uint32), Fd: proto.Int64(-1)}
	if advice != 0 {
		v.Madv = &advice
	}
	return v
}

// adapted returns what mm-1.img in dir says now.
func adapted(t *testing.T, dir string) *mm.MmEntry {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "mm-1.img"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := decodeImage[mm.MmEntry](data)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	return all[0]
}
