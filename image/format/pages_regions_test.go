package format

import (
	"slices"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

func mapping(start, end, advice uint64) *vma.VmaEntry {
	return &vma.VmaEntry{Start: &start, End: &end, Madv: &advice}
}

func TestRegions(t *testing.T) {
	plain := &vma.VmaEntry{Start: proto.Uint64(0x1000), End: proto.Uint64(0x2000)}
	img := image(t, magicMM, &mm.MmEntry{Vmas: []*vma.VmaEntry{plain, mapping(0x2000, 0x9000, 1<<unix.MADV_HUGEPAGE|1<<unix.MADV_DONTFORK)}})
	got, err := Regions(put(t, t.TempDir(), "mm-1.img", img), 1)
	if err != nil || !slices.Equal(got, []Region{{Start: 0x2000, End: 0x9000, Advice: 1<<14 | 1<<10}}) {
		t.Fatalf("gives %v, %v", got, err)
	}
	if r := got[0]; !r.Advised(unix.MADV_HUGEPAGE) || !r.Advised(unix.MADV_DONTFORK) || r.Advised(unix.MADV_WIPEONFORK) {
		t.Errorf("%v is understood wrongly", r)
	}
	if got, err := Regions(t.TempDir(), 1); got != nil || err != nil {
		t.Errorf("a process without memory gives %v, %v", got, err)
	}
	for name, img := range map[string][]byte{
		"nothing":     {},
		"no record":   image(t, magicMM),
		"other image": image(t, magicCore, &mm.MmEntry{}),
		"cut":         img[:len(img)-1],
		"no protobuf": image(t, magicMM, []byte{0xff}),
		"backwards":   image(t, magicMM, &mm.MmEntry{Vmas: []*vma.VmaEntry{mapping(2, 1, 4)}}),
	} {
		if _, err := Regions(put(t, t.TempDir(), "mm-1.img", img), 1); !errdefs.IsDataLoss(err) {
			t.Errorf("%s gives %v", name, err)
		}
	}
}
