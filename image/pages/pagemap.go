package pages

import (
	"encoding/binary"
	"io"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
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
	// MaxPages bounds the pages of one pages file, so that offsets in it fit an int64 at any page size.
	MaxPages = 1 << 40
)

// Run is a range of pages that follow each other both in memory and in the pages file.
type Run struct {
	Addr  uint64 // of the first page; in shared memory the offset in the object
	First int64  // index of the first page in the pages file
	Count int64  // pages
}

// Pagemap is what one pagemap image says.
type Pagemap struct {
	Name  string // of the image, as pagemap-12.img
	Pages uint64 // number of the pages file
	Runs  []Run  // ascending, not touching each other both in address and index
	Count int64  // pages in the pages file
	Lazy  []Run  // those of Runs that CRIU leaves out when it restores with lazy pages; as Runs are
}

// openPagemap gives the head of a pagemap image, and what its entries are read from.
func openPagemap(name string, r io.Reader) (rs *records, head []byte, err error) {
	if rs, err = newRecords(name, r, magicPagemap); err != nil {
		return nil, nil, err
	}
	if head, err = rs.next(); err == io.EOF {
		return nil, nil, Malformed(name, "has no head")
	}
	return rs, head, err
}

// ReadPagemap reads the pagemap image called name. pageSize is in bytes.
func ReadPagemap(name string, r io.Reader, pageSize int64) (*Pagemap, error) {
	rs, head, err := openPagemap(name, r)
	if err != nil {
		return nil, err
	}
	m := &Pagemap{Name: name}
	if m.Pages, err = parseHead(name, head); err != nil {
		return nil, err
	}
	var end uint64 // of the entry before
	for {
		record, err := rs.next()
		if err == io.EOF {
			return m, nil
		} else if err != nil {
			return nil, err
		}
		e, err := parseEntry(name, record)
		if err != nil {
			return nil, err
		}
		switch {
		case e.addr%uint64(pageSize) != 0:
			return nil, Malformed(name, "address %#x is not a multiple of the page size %d", e.addr, pageSize)
		case e.count > MaxPages || e.addr > maxAddress || e.addr+e.count*uint64(pageSize) > maxAddress:
			return nil, Malformed(name, "%d pages at %#x are outside of any address space", e.count, e.addr)
		case e.addr < end:
			return nil, Malformed(name, "address %#x comes after %#x", e.addr, end)
		case e.flags&flagParent != 0:
			return nil, failure.New(errdefs.ErrNotImplemented, "take the checkpoint without a parent (no --parent-path)",
				"read CRIU image %s: the memory is an increment: pages are in a parent snapshot", name)
		}
		end = e.addr + e.count*uint64(pageSize)
		if e.flags&flagPresent == 0 || e.count == 0 {
			continue
		}
		if m.Count+int64(e.count) > MaxPages {
			return nil, Malformed(name, "more than %d pages", int64(MaxPages))
		}
		r := Run{Addr: e.addr, First: m.Count, Count: int64(e.count)}
		m.Runs = join(m.Runs, r, pageSize)
		if e.flags&flagLazy != 0 {
			m.Lazy = join(m.Lazy, r, pageSize)
		}
		m.Count += r.Count
	}
}

// join appends pages, joined to the run before where they continue it: CRIU cuts entries at 256 pages in places.
func join(runs []Run, r Run, pageSize int64) []Run {
	if n := len(runs); n > 0 {
		if last := &runs[n-1]; last.Addr+uint64(last.Count*pageSize) == r.Addr && last.First+last.Count == r.First {
			last.Count += r.Count
			return runs
		}
	}
	return append(runs, r)
}

func parseHead(name string, b []byte) (uint64, error) {
	var m pagemap.PagemapHead
	if err := unmarshal(name, b, &m, "its head is none"); err != nil {
		return 0, err
	}
	if m.PagesId == nil {
		return 0, Malformed(name, "its head names no pages file")
	}
	return uint64(m.GetPagesId()), nil
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
	if err := unmarshal(name, b, &m, "a record is no entry"); err != nil {
		return entry{}, err
	}
	e := entry{addr: m.GetVaddr(), count: m.GetNrPages(), flags: m.GetFlags(), wide: m.NrPages != nil}
	if !e.wide {
		e.count = uint64(m.GetCompatNrPages())
	}
	switch {
	case m.Vaddr == nil || m.CompatNrPages == nil && !e.wide:
		return e, Malformed(name, "an entry without address or number of pages")
	case m.GetInParent():
		e.flags |= flagParent
	case m.Flags == nil:
		e.flags = flagPresent
	}
	return e, nil
}

// EmptyPagemap is a pagemap image that lists nothing, of the pages file with this number.
func EmptyPagemap(file uint32) ([]byte, error) {
	b := binary.LittleEndian.AppendUint32(nil, magicCommon)
	b = binary.LittleEndian.AppendUint32(b, magicPagemap)
	return appendMessage(b, &pagemap.PagemapHead{PagesId: &file})
}
