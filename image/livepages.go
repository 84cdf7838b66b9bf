package image

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/format"
)

// Pages are the memory of a snapshot, read piece by piece and in any order. All its segments are open, so that it can be read
// when the snapshot was removed.
type Pages struct {
	x        *format.Index
	segments []segmentAt        // nil: nothing is needed of it
	frames   map[uint64][]int32 // of each file that maps has, by address
	maps     map[uint64]*format.Pagemap
	ids      map[string]uint64           // of each pagemap
	wiped    map[uint64][]format.PageRun // by file: the pages that a restore leaves zero; see wipe
}

// segmentAt is an open segment.
type segmentAt interface {
	io.ReaderAt
	io.Closer
}

// Arriving is what [OpenPages] may be given for a segment whose bytes are still on their way. Its ReadAt waits for them.
type Arriving interface {
	io.ReadCloser
	io.ReaderAt
	// There reports whether all bytes before end can be read without waiting for them.
	There(end int64) bool
	// ReadAhead is ReadAt of bytes that no reader waits for yet.
	ReadAhead(p []byte, off int64) (int, error)
	// Again reports whether bytes that turned out to be damaged are to be read again, after so many times, and waits until then. err says what is wrong with them.
	Again(tries int, err error) bool
	// ReadAgain is ReadAt of bytes that were read and turned out to be damaged: it takes them from where they come from.
	ReadAgain(p []byte, off int64) (int, error)
}

// trusted is what an [Arriving] may be besides: all of it may have come into the store meanwhile, verified.
type trusted interface {
	Verified() (format.Verified, bool)
}

// Part is what one frame has of pages that are restored together: the lazy ones or the others.
type Part struct {
	frame int32
	Runs  []format.Run // ascending by address
}

func (p Part) bytes(pageSize int64) (n int64) {
	for _, r := range p.Runs {
		n += r.Count * pageSize
	}
	return n
}

// OpenPages opens the memory of the snapshot d, whose images, unpacked by [Snapshot.Unpack], are in dir. What src gives must be an
// io.ReaderAt, as [os.File] is. wipe is [UnpackOptions.Wipe]. Errors are those of [Open], [Snapshot.ReadIndex] and of src.
func OpenPages(ctx context.Context, src Fetcher, d ocispec.Descriptor, dir string, wipe bool) (*Pages, error) {
	s, x, err := openIndex(ctx, src, d)
	if err != nil {
		return nil, err
	}
	maps, err := format.ReadPagemapDir(dir, x.PageSize)
	if err != nil {
		return nil, err
	}
	// They are what Unpack has compared already, unless another process has written there since.
	check := newPagemapCheck(x)
	for _, m := range maps {
		if err := check.pagemap(m); err != nil {
			return nil, err
		}
	}
	m := newPages(x, maps)
	if wipe {
		if err := m.wipe(dir); err != nil {
			return nil, err
		}
	}
	if err := m.open(ctx, src, s); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func newPages(x *format.Index, maps []*format.Pagemap) *Pages {
	m := &Pages{x: x, frames: x.ByFile(), maps: make(map[uint64]*format.Pagemap, len(maps)), ids: make(map[string]uint64, len(maps))}
	for _, p := range maps {
		m.maps[p.Pages], m.ids[p.Name] = p, p.Pages
	}
	for id := range m.frames {
		if m.maps[id] == nil {
			delete(m.frames, id)
		}
	}
	return m
}

func (m *Pages) open(ctx context.Context, src Fetcher, s *Snapshot) error {
	segments := s.Segments()
	needed := make([]bool, len(segments))
	for _, frames := range m.frames {
		for _, i := range frames {
			needed[m.x.Frames[i].Segment] = true
		}
	}
	m.segments = make([]segmentAt, len(segments))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0)) // a store looks at all directories above each
	for i, d := range segments {
		if needed[i] {
			g.Go(func() (err error) {
				m.segments[i], err = openSegment(ctx, src, d, i < s.shared())
				return err
			})
		}
	}
	return g.Wait()
}

// openSegment opens a segment, which is the parent's too or not.
func openSegment(ctx context.Context, src Fetcher, d ocispec.Descriptor, shared bool) (segmentAt, error) {
	part := d.Annotations[ocispec.AnnotationTitle]
	rc, err := src.Fetch(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", part, err)
	}
	at, ok := rc.(segmentAt)
	if !ok {
		rc.Close()
		return nil, fmt.Errorf("open %s: it can be read from its beginning only", part)
	}
	if v, ok := rc.(format.Verified); ok && shared {
		at = struct{ format.Verified }{v} // another type: see shared
	} else if a, ok := rc.(Arriving); ok && shared {
		at = unverified(a)
	}
	return at, nil
}

// unverified is an arriving segment that is never [trusted]: see shared.
func unverified(a Arriving) segmentAt { return struct{ Arriving }{a} }

// Close closes the segments.
func (m *Pages) Close() {
	for _, s := range m.segments {
		if s != nil {
			s.Close()
		}
	}
}

// PageSize is that of the host the snapshot was taken on, in bytes.
func (m *Pages) PageSize() int64 { return m.x.PageSize }

// Lazy returns the pages of a process, by its pid in the images, that CRIU leaves out when it restores with lazy pages, but for
// those of zeros: ascending by address. A process that has no memory gives none.
func (m *Pages) Lazy(pid int) []Part {
	id, ok := m.ids[fmt.Sprintf("pagemap-%d.img", pid)]
	if !ok {
		return nil
	}
	return m.parts(id, true)
}

// parts returns what is to be filled of a pages file, the lazy pages or the others.
func (m *Pages) parts(id uint64, lazy bool) (parts []Part) {
	p := m.maps[id]
	if p == nil {
		return nil
	}
	rest := p.Lazy // both ascend
	for _, i := range m.frames[id] {
		runs := m.runs(id, i)
		for len(rest) > 0 && len(runs) > 0 && rest[0].Addr+uint64(rest[0].Count*m.x.PageSize) <= runs[0].Addr {
			rest = rest[1:]
		}
		if some := choose(runs, rest, m.x.PageSize, lazy); len(some) > 0 {
			parts = append(parts, Part{frame: i, Runs: some})
		}
	}
	return parts
}

// all returns what there is of a pages file.
func (m *Pages) all(id uint64) (parts []Part) {
	for _, i := range m.frames[id] {
		if runs := m.runs(id, i); len(runs) > 0 {
			parts = append(parts, Part{frame: i, Runs: runs})
		}
	}
	return parts
}

// choose returns the pages of runs that are among the lazy ones, or those that are not. If that is all, it is runs itself.
func choose(runs []format.Run, lazy []format.PageRun, pageSize int64, want bool) (chosen []format.Run) {
	for _, r := range runs {
		for r.Count > 0 {
			for len(lazy) > 0 && lazy[0].First+lazy[0].Count <= r.First {
				lazy = lazy[1:]
			}
			n, is := r.Count, false
			if len(lazy) > 0 {
				if is = lazy[0].First <= r.First; is {
					n = min(n, lazy[0].First+lazy[0].Count-r.First)
				} else {
					n = min(n, lazy[0].First-r.First)
				}
			}
			if is == want {
				part := r
				part.Count = n
				chosen = append(chosen, part)
			}
			r.First, r.Addr, r.Count = r.First+n, r.Addr+uint64(n*pageSize), r.Count-n
		}
	}
	if slices.Equal(chosen, runs) {
		return runs
	}
	return chosen
}

// There reports whether a part can be read without waiting for its segment to arrive.
func (m *Pages) There(p Part) bool {
	f := &m.x.Frames[p.frame]
	a, arriving := m.segments[f.Segment].(Arriving)
	return !arriving || a.There(f.Offset+f.Stored)
}

// Behind reports whether a part stands in the same segment as another and behind it: it arrives no earlier.
func (m *Pages) Behind(p, other Part) bool {
	f, o := &m.x.Frames[p.frame], &m.x.Frames[other.frame]
	return f.Segment == o.Segment && f.Offset >= o.Offset
}

// ReadAhead brings what is read first into the page cache, so many bytes at most, until ctx ends. Segments that are not in the local store are left out.
func (m *Pages) ReadAhead(ctx context.Context, most int64) {
	for i, s := range m.segments {
		if s, ok := s.(interface {
			ReadAhead(ctx context.Context, n int64)
		}); ok {
			n := min(m.x.Segments[i].Size, most)
			s.ReadAhead(ctx, n)
			most -= n
		}
	}
}

// PagesReader reads parts, for one goroutine.
type PagesReader struct {
	m   *Pages
	dec *format.Decoder
	buf []byte
	// Ahead says that no reader waits for what is read.
	Ahead bool
}

// Reader returns what one goroutine reads parts with; it takes some MiB.
func (m *Pages) Reader() (*PagesReader, error) {
	dec, err := format.NewDecoder()
	if err != nil {
		return nil, err
	}
	return &PagesReader{m: m, dec: dec, buf: format.LendBuffer()}, nil
}

// Close gives back what the reader holds.
func (r *PagesReader) Close() {
	r.dec.Close()
	if r.buf != nil {
		format.ReturnBuffer(r.buf)
		r.buf = nil
	}
}

// Read returns the bytes of a part's runs, one after the other, verified: by their digest, or by their check where the segment is a
// [format.Verified]. They are valid until the next call. Read returns an error of kind
// DataLoss for bytes that do not verify, and for a segment that is cut short.
func (r *PagesReader) Read(p Part) ([]byte, error) {
	f := &r.m.x.Frames[p.frame]
	raw, err := r.frame(p.frame, r.buf)
	if err != nil {
		return nil, err
	}
	if len(p.Runs) == len(f.Runs) && &p.Runs[0] == &f.Runs[0] {
		return raw, nil
	}
	// Both ascend, so nothing is moved over what is still to be moved.
	var n, at int64
	rest := p.Runs
	for _, run := range f.Runs {
		for len(rest) > 0 && rest[0].First < run.First+run.Count {
			from := at + (rest[0].First-run.First)*r.m.x.PageSize
			n += int64(copy(raw[n:], raw[from:from+rest[0].Count*r.m.x.PageSize]))
			rest = rest[1:]
		}
		at += run.Count * r.m.x.PageSize
	}
	return raw[:n], nil
}

// frame returns the decoded bytes of a frame. It reads into buf, which must be as long as what is stored and as what is decoded; there
// they are, too, if the codec is [format.Raw].
func (r *PagesReader) frame(i int32, buf []byte) ([]byte, error) {
	f := &r.m.x.Frames[i]
	if v, ok := r.m.verified(f.Segment); ok {
		kept, err := v.Frame(f, buf)
		if err != nil {
			return nil, r.m.short(f, err)
		}
		return r.dec.DecodeKept(f, kept)
	}
	stored := buf[:f.Stored]
	a, arriving := r.m.segments[f.Segment].(Arriving)
	read := r.m.segments[f.Segment].ReadAt
	if arriving && r.Ahead {
		read = a.ReadAhead
	}
	if n, err := read(stored, f.Offset); n < len(stored) {
		return nil, r.m.short(f, err)
	}
	raw, err := r.dec.Decode(f, stored)
	// The whole segment was not verified yet; it is fetched again, too, where it is damaged.
	for tries := 0; err != nil && arriving && a.Again(tries, err); tries++ {
		if _, err := a.ReadAgain(stored, f.Offset); err != nil {
			return nil, err
		}
		raw, err = r.dec.Decode(f, stored)
	}
	return raw, err
}

// verified returns a segment whose frames need no digest.
func (m *Pages) verified(i int) (format.Verified, bool) {
	switch s := m.segments[i].(type) {
	case format.Verified:
		return s, true
	case trusted:
		return s.Verified()
	}
	return format.Verified{}, false
}

// short returns the error of a segment that is cut short before the end of f its type.
func (m *Pages) short(f *format.Frame, err error) error {
	if err != io.EOF {
		return err
	}
	s := m.x.Segments[f.Segment]
	return damaged(fmt.Sprintf("segment %d", f.Segment), digest.NewDigestFromBytes(digest.SHA256, s.Digest[:]), errShort)
}
