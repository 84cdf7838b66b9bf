package index

import (
	"cmp"
	"slices"

	"github.com/cryo-project/cryo/image/pages"
)

// Check says whether the parts of an index fit together: frames lie in their segment without overlap and take half of it at
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
		if pid, _, ok := pages.DeviceOf(f.ID); ok {
			if pid < 1 || pid > MaxPID || f.Count == 0 || f.Pagemap != "" {
				return broken("%s is not possible", f)
			}
			continue
		}
		if !pages.IsPagemapName(f.Pagemap) {
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
		if s.Size < 1 || s.Size > MaxSize || s.Raw < 1 || s.Raw > MaxSize {
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
	for i, r := range f.Runs {
		file, ok := x.File(r.File)
		if !ok {
			return broken("a run names %s, which is not listed", File{ID: r.File})
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

// checkOverlap says whether two runs fill one page, in any two frames, or whether there is a run of one frame between those of another:
// readers find a page by the frame that ends behind it.
func (x *Index) checkOverlap() error {
	var n int
	for i := range x.Frames {
		n += len(x.Frames[i].Runs)
	}
	type part struct {
		Run
		frame int
		first bool // of its frame
	}
	runs := make([]part, 0, n)
	for i := range x.Frames {
		for j, r := range x.Frames[i].Runs {
			runs = append(runs, part{r, i, j == 0})
		}
	}
	slices.SortFunc(runs, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.First, b.First))
	})
	for i := 1; i < len(runs); i++ {
		a, b := runs[i-1], runs[i]
		if a.File == b.File && (b.First < a.First+a.Count || b.Addr < a.Addr+uint64(a.Count*x.PageSize)) {
			return broken("pages from %d and from %d of %s overlap or are out of order", a.First, b.First, File{ID: a.File})
		}
		if a.frame != b.frame && !b.first {
			return broken("pages from %d of %s are between those of another frame", a.First, File{ID: a.File})
		}
	}
	return nil
}

// File finds a pages file by its ID.
func (x *Index) File(id uint64) (File, bool) {
	i, ok := slices.BinarySearchFunc(x.Files, id, func(f File, id uint64) int { return cmp.Compare(f.ID, id) })
	if !ok {
		return File{}, false
	}
	return x.Files[i], true
}
