package fill

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// lazySnapshot is a snapshot in a store of one process with so many MiB from 1 GiB on, unpacked but for its memory.
func lazySnapshot(t *testing.T, pid uint32, memory []byte) (s *store.Store, p *image.Pages, images string) {
	t.Helper()
	dumped := t.TempDir()
	write := func(name string, magic uint32, records ...proto.Message) {
		b := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0x54564319), magic)
		for _, r := range records {
			record, err := proto.MarshalOptions{AllowPartial: true}.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(record))), record...)
		}
		if err := os.WriteFile(filepath.Join(dumped, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pages, lazy := uint32(len(memory)/4096), uint32(6) // PE_LAZY and PE_PRESENT
	write("inventory.img", 0x58313116)
	write("pstree.img", 0x50273030, &pstree.PstreeEntry{Pid: &pid, Ppid: proto.Uint32(0), Pgid: &pid, Sid: &pid, Threads: []uint32{pid}})
	write("core-7.img", 0x55053847, &criucore.CoreEntry{})
	write("pagemap-7.img", 0x56084025, &pagemap.PagemapHead{PagesId: proto.Uint32(1)}, &pagemap.PagemapEntry{Vaddr: proto.Uint64(1 << 30), CompatNrPages: &pages, Flags: &lazy})
	if err := os.WriteFile(filepath.Join(dumped, "pages-1.img"), memory, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d, err := image.Pack(t.Context(), s, image.PackSource{Images: dumped, Config: image.Config{Spec: []byte("{}"), Host: image.Host{PageSize: 4096}}}, image.PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := image.Open(t.Context(), s, d)
	if err != nil {
		t.Fatal(err)
	}
	images = filepath.Join(t.TempDir(), "images")
	if err := snapshot.Unpack(t.Context(), s, images, image.UnpackOptions{Lazy: true}); err != nil {
		t.Fatal(err)
	}
	if p, err = image.OpenPages(t.Context(), s, d, images); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return s, p, images
}

// TestHeadStart: with four cores, memory is here before the process runs, and the disk is not asked for it again; CRIU needs fewer for itself.
func TestHeadStart(t *testing.T) {
	const pid, mib = 7, 1 << 20
	memory := make([]byte, 8*mib)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(memory) // never fails
	for _, cores := range []int{2, 4} {
		s, p, images := lazySnapshot(t, pid, memory)
		before := runtime.GOMAXPROCS(cores)
		t.Cleanup(func() { runtime.GOMAXPROCS(before) })
		from := newSource(p, images)
		if _, err := from.Layout(pid); err != nil {
			t.Fatal(err)
		}
		parts := p.Lazy(pid)
		if len(parts) != 8 {
			t.Fatalf("%d pieces", len(parts))
		}
		if p.Cached(parts[0]) {
			t.Skip("files stay in the page cache here, where they are left")
		}
		ended := headStart(from)
		for deadline := time.Now().Add(time.Minute); cores == 4; time.Sleep(time.Millisecond) {
			here := 0
			for i := range parts {
				if from.ahead.there(place{pid, i}) {
					here++
				}
			}
			if here == len(parts) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d pieces have come in a minute", here)
			}
		}
		ended()
		// Whoever asks the disk now gets nothing that is right.
		blobs, err := filepath.Glob(filepath.Join(s.Root(), "store/blobs/sha256/*"))
		if err != nil || len(blobs) == 0 {
			t.Fatalf("blobs %v, %v", blobs, err)
		}
		for _, b := range blobs {
			if info, err := os.Stat(b); err != nil || info.Size() < mib {
				continue
			}
			if err := os.Chmod(b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(b, make([]byte, len(memory)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := from.Reader()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for i := range parts {
			got, err := r.Read(t.Context(), pid, i)
			if fine := err == nil && bytes.Equal(got, memory[i*mib:(i+1)*mib]); fine != (cores == 4) {
				t.Errorf("%d cores, piece %d: %d bytes, right: %t, %v", cores, i, len(got), fine, err)
			}
		}
	}
}
