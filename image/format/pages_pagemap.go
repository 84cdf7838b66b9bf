package format

import (
	"io"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/failure"
)

// Flags of a pagemap entry, from CRIU's criu/include/pagemap.h.
const (
	flagParent  = 1 << 0 // the page is in the parent snapshot
	flagLazy    = 1 << 1 // the page may be restored when the process runs already
	flagPresent = 1 << 2 // the page is in the pages file
)

// Limits. 2^57 is the largest user address space of any architecture CRIU knows; shared memory is addressed from 0.
const (
	maxAddress = 1 << 57
	// MaxFilePages bounds the pages of one pages file, so that offsets in it fit an int64 at any page size.
	MaxFilePages = 1 << 40
)

// PageRun is a range of pages that follow each other both in memory and in the pages file.
type PageRun struct {
	Addr  uint64 // of the first page; in shared memory the offset in the object
	First int64  // index of the first page in the pages file
	Count int64  // pages
}

// Pagemap is what one pagemap image says.
type Pagemap struct {
	Name  string    // of the image, as pagemap-12.img
	Pages uint64    // number of the pages file
	Runs  []PageRun // ascending, not touching each other both in address and index
	Count int64     // pages in the pages file
	Lazy  []PageRun // those of Runs that CRIU leaves out when it restores with lazy pages; as Runs are
}

// readPagemap hands the entries of a pagemap image to take, and gives the number of its pages file.
func readPagemap(name string, r io.Reader, take func(record []byte, e entry) error) (file uint64, err error) {
	body, err := read(name, r, magicPagemap)
	if err != nil {
		return 0, err
	}
	if len(body) == 0 {
		return 0, MalformedImage(name, "has no head")
	}
	var head *pagemap.PagemapHead
	err = each(name, body, func(record []byte) error {
		if head == nil {
			head = &pagemap.PagemapHead{}
			return unmarshal(name, record, head)
		}
		e, err := parseEntry(name, record)
		if err != nil {
			return err
		}
		return take(record, e)
	})
	if err == nil && head.PagesId == nil {
		err = MalformedImage(name, "its head names no pages file")
	}
	return uint64(head.GetPagesId()), err
}

// ReadPagemap reads the pagemap image called name. pageSize is in bytes.
func ReadPagemap(name string, r io.Reader, pageSize int64) (m *Pagemap, err error) {
	m = &Pagemap{Name: name}
	var end uint64 // of the entry before
	m.Pages, err = readPagemap(name, r, func(_ []byte, e entry) error {
		switch {
		case e.addr%uint64(pageSize) != 0:
			return MalformedImage(name, "address %#x is not a multiple of the page size %d", e.addr, pageSize)
		case e.count > MaxFilePages || e.addr > maxAddress || e.addr+e.count*uint64(pageSize) > maxAddress:
			return MalformedImage(name, "%d pages at %#x are outside of any address space", e.count, e.addr)
		case e.addr < end:
			return MalformedImage(name, "address %#x comes after %#x", e.addr, end)
		case e.flags&flagParent != 0:
			return failure.New(errdefs.ErrNotImplemented, "take the checkpoint without a parent (no --parent-path)",
				"read CRIU image %s: the memory is an increment: pages are in a parent snapshot", name)
		}
		end = e.addr + e.count*uint64(pageSize)
		if e.flags&flagPresent == 0 || e.count == 0 {
			return nil
		}
		if m.Count+int64(e.count) > MaxFilePages {
			return MalformedImage(name, "more than %d pages", int64(MaxFilePages))
		}
		r := PageRun{Addr: e.addr, First: m.Count, Count: int64(e.count)}
		m.Runs = join(m.Runs, r, pageSize)
		if e.flags&flagLazy != 0 {
			m.Lazy = join(m.Lazy, r, pageSize)
		}
		m.Count += r.Count
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// join appends pages, joined to the run before where they continue it: CRIU cuts entries at 256 pages in places.
func join(runs []PageRun, r PageRun, pageSize int64) []PageRun {
	if n := len(runs); n > 0 {
		if last := &runs[n-1]; last.Addr+uint64(last.Count*pageSize) == r.Addr && last.First+last.Count == r.First {
			last.Count += r.Count
			return runs
		}
	}
	return append(runs, r)
}

type entry struct {
	addr, count uint64
	flags       uint32
	wide        bool // the number of pages was in the field of 64 bits
}

// parseEntry reads a pagemap_entry. Images written before CRIU had flags hold present pages, or pages of the parent where
// in_parent is set. Where nr_pages was widened to 64 bits the field that it was in before is only for old readers.
func parseEntry(name string, b []byte) (entry, error) {
	var m pagemap.PagemapEntry
	if err := unmarshal(name, b, &m); err != nil {
		return entry{}, err
	}
	e := entry{addr: m.GetVaddr(), count: m.GetNrPages(), flags: m.GetFlags(), wide: m.NrPages != nil}
	if !e.wide {
		e.count = uint64(m.GetCompatNrPages())
	}
	switch {
	case m.Vaddr == nil || m.CompatNrPages == nil && !e.wide:
		return e, MalformedImage(name, "an entry without address or number of pages")
	case m.GetInParent():
		e.flags |= flagParent
	case m.Flags == nil:
		e.flags = flagPresent
	}
	return e, nil
}

// EmptyPagemap is a pagemap image that lists nothing, of the pages file with this number.
func EmptyPagemap(file uint32) ([]byte, error) {
	return appendMessage(ImageHead(magicPagemap), &pagemap.PagemapHead{PagesId: &file})
}

// appendMessage appends a record.
func appendMessage(b []byte, m proto.Message) ([]byte, error) {
	record, err := proto.Marshal(m)
	return AppendRecord(b, record), err
}
