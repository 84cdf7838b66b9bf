package format

import (
	"cmp"
	"slices"
)

// Check returns an error unless the parts of an index fit together: frames lie in their segment without overlap and take half of it at
// least, every run is inside its pages file and belongs to one frame only, and everything is in the one order the format allows.
func (x *Index) Check() error {
	if x.PageSize < minPageSize || x.PageSize > maxPageSize || x.PageSize&(x.PageSize-1) != 0 {
		return broken("page size %d is not a power of two from %d to %d", x.PageSize, minPageSize, maxPageSize)
	}
	if len(x.Segments) > MaxSegments || len(x.Files) > MaxPagesFiles {
		return broken("%d segments and %d pages files are too many", len(x.Segments), len(x.Files))
	}
	if err := x.checkFiles(); err != nil {
		return err
	}
	if err := x.checkFrames(); err != nil {
		return err
	}
	return x.checkOverlap()
}

func (x *Index) checkFiles() error {
	names := make(map[string]struct{}, len(x.Files))
	for i, f := range x.Files {
		if i > 0 && f.ID <= x.Files[i-1].ID {
			return broken("%s and %s are out of order", x.Files[i-1], f)
		}
		if f.Count < 0 || f.Count > MaxPages {
			return broken("%s has %d pages", f, f.Count)
		}
		if pid, _, ok := DeviceOf(f.ID); ok {
			if pid < 1 || pid > MaxPID || f.Count == 0 || f.Pagemap != "" {
				return broken("%s is not possible", f)
			}
			continue
		}
		if !IsPagemapName(f.Pagemap) {
			return broken("%q is not the name of a pagemap image", f.Pagemap)
		}
		if _, twice := names[f.Pagemap]; twice {
			return broken("%s describes two pages files", f.Pagemap)
		}
		names[f.Pagemap] = struct{}{}
	}
	return nil
}

// checkFrames walks segments and frames side by side.
func (x *Index) checkFrames() error {
	rest := x.Frames
	for n, s := range x.Segments {
		if s.Size < 1 || s.Size > MaxSegmentBytes || s.Raw < 1 || s.Raw > MaxSegmentBytes {
			return broken("segment %d has %d bytes for %d", n, s.Size, s.Raw)
		}
		var end, used, raw int64
		for len(rest) > 0 && rest[0].Segment == n {
			f := &rest[0]
			rest = rest[1:]
			if err := x.checkFrame(f); err != nil {
				return err
			}
			if f.Offset < end {
				return broken("a frame of segment %d at %d overlaps the one before, which ends at %d", n, f.Offset, end)
			}
			if f.Offset > s.Size || f.Stored > s.Size-f.Offset {
				return broken("a frame of %d bytes at %d does not lie in segment %d of %d", f.Stored, f.Offset, n, s.Size)
			}
			end = f.Offset + f.Stored
			used += f.Stored
			raw += f.Raw
		}
		if raw != s.Raw {
			return broken("the frames of segment %d make %d bytes instead of %d", n, raw, s.Raw)
		}
		if used < s.Size-used {
			return broken("frames take %d of the %d bytes of segment %d, less than half", used, s.Size, n)
		}
	}
	if len(rest) > 0 {
		return broken("a frame of segment %d is out of order or its segment does not exist", rest[0].Segment)
	}
	return nil
}

func (x *Index) checkFrame(f *Frame) error {
	switch {
	case f.Raw < x.PageSize || f.Raw > MaxFrame || f.Raw%x.PageSize != 0:
		return broken("a frame of %d bytes", f.Raw)
	case f.Codec == Raw && f.Stored != f.Raw,
		f.Codec == Zstd && (f.Stored < 1 || f.Stored >= f.Raw),
		f.Codec != Raw && f.Codec != Zstd:
		return broken("a frame with codec %s stores %d bytes in %d", f.Codec, f.Raw, f.Stored)
	case len(f.Runs) == 0:
		return broken("a frame without runs")
	}
	var count int64
	var file PagesFile
	for i, r := range f.Runs {
		if i == 0 || r.File != file.ID {
			var ok bool
			if file, ok = x.File(r.File); !ok {
				return broken("a run names %s, which is not listed", PagesFile{ID: r.File})
			}
		}
		if r.Count < 1 || r.First < 0 || r.First > file.Count || r.Count > file.Count-r.First || r.Count > f.Raw/x.PageSize {
			return broken("a run of %d pages from %d is not inside %s of %d", r.Count, r.First, file, file.Count)
		}
		last := r.Addr + uint64(r.Count*x.PageSize) - 1
		if r.Addr > MaxAddress || r.Addr%uint64(x.PageSize) != 0 || r.Addr/MaxFrame != last/MaxFrame || r.Addr/MaxFrame != f.Runs[0].Addr/MaxFrame {
			return broken("a run of %d pages at %x crosses a border of %d bytes or is not aligned", r.Count, r.Addr, MaxFrame)
		}
		if i > 0 {
			before := f.Runs[i-1]
			gap := int64(r.Addr) - int64(before.Addr) - before.Count*x.PageSize
			skip := r.First - before.First - before.Count
			if before.File != r.File || gap < 0 || skip < 0 || gap == 0 && skip == 0 {
				return broken("runs at %x and %x are out of order, overlap or should be one", before.Addr, r.Addr)
			}
		}
		count += r.Count
	}
	if count*x.PageSize != f.Raw {
		return broken("the runs of a frame of %d bytes hold %d pages", f.Raw, count)
	}
	return nil
}

// checkOverlap returns an error if two runs fill one page, in any two frames, or if there is a run of one frame between those of another:
// readers find a page by the frame that ends behind it.
//
// It looks at frames, whose own runs ascend: each has to begin behind the end of the one before.
func (x *Index) checkOverlap() error {
	order := x.byPages()
	for i := 1; i < len(order); i++ {
		a, b := x.Frames[order[i-1]].Runs, x.Frames[order[i]].Runs
		last, first := a[len(a)-1], b[0]
		if last.File == first.File && (first.First < last.First+last.Count || first.Addr < last.Addr+uint64(last.Count*x.PageSize)) {
			return broken("pages from %d and from %d of %s overlap, are out of order or between those of another frame", a[0].First, first.First, PagesFile{ID: first.File})
		}
	}
	return nil
}

// byPages returns the numbers of the frames in the order of files and of the pages that each begins with.
func (x *Index) byPages() []int32 {
	order := make([]int32, len(x.Frames))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		a, b := &x.Frames[i].Runs[0], &x.Frames[j].Runs[0]
		if a.File != b.File {
			return cmp.Compare(a.File, b.File)
		}
		return cmp.Compare(a.First, b.First)
	})
	return order
}

// ByFile returns the numbers of each file's frames, in the order of their pages, which in an index that was checked is also that of their
// addresses. Every frame must have runs, of one file.
func (x *Index) ByFile() map[uint64][]int32 {
	order := x.byPages()
	files := make(map[uint64][]int32, len(x.Files))
	for len(order) > 0 {
		id, n := x.Frames[order[0]].Runs[0].File, 1
		for n < len(order) && x.Frames[order[n]].Runs[0].File == id {
			n++
		}
		files[id], order = order[:n:n], order[n:]
	}
	return files
}

// File finds a pages file by its ID.
func (x *Index) File(id uint64) (PagesFile, bool) {
	i, ok := slices.BinarySearchFunc(x.Files, id, func(f PagesFile, id uint64) int { return cmp.Compare(f.ID, id) })
	if !ok {
		return PagesFile{}, false
	}
	return x.Files[i], true
}
