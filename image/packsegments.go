package image

import (
	"cmp"
	"encoding/hex"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// packedSegment is a segment that is stored; the frames' segment number is not filled in yet.
type packedSegment struct {
	desc   ocispec.Descriptor
	raw    int64
	frames []format.Frame
	// parents says that it is the parent's.
	parents bool
}

// inherited counts the segments of the parent, which come first.
func inherited(packed []packedSegment) (n int) {
	for n < len(packed) && packed[n].parents {
		n++
	}
	return n
}

// newIndex numbers the segments, and names them in their descriptors.
func newIndex(packed []packedSegment, parts []memoryPart, pageSize int64) *format.Index {
	x := &format.Index{PageSize: pageSize}
	for n := range packed {
		s := &packed[n]
		s.desc.Annotations = map[string]string{ocispec.AnnotationTitle: titleSegment(n)}
		is := format.Segment{Size: s.desc.Size, Raw: s.raw}
		_, _ = hex.Decode(is.Digest[:], []byte(s.desc.Digest.Encoded())) // a store that lies is found out by Verify
		x.Segments = append(x.Segments, is)
		for i := range s.frames {
			s.frames[i].Segment = n
		}
		x.Frames = append(x.Frames, s.frames...)
	}
	for _, p := range parts {
		for _, m := range p.maps {
			f := format.PagesFile{ID: m.Pages, Pagemap: m.Name, Count: m.Count}
			if f.IsDevice() {
				f.Pagemap = ""
			}
			x.Files = append(x.Files, f)
		}
	}
	slices.SortFunc(x.Files, func(a, b format.PagesFile) int { return cmp.Compare(a.ID, b.ID) })
	return x
}
