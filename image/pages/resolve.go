package pages

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"

	"github.com/cryo-project/cryo/image/spec/records"
)

// Part is pages that follow each other in memory. Lazy says that a process can be restored before it has them.
type Part struct {
	Addr  uint64
	Count int64
	Lazy  bool
}

// Resolve rewrites the pagemap image called name in dir as if no page of it were in a parent snapshot: for each entry that says so, parts
// gives what it becomes, which must be the same pages. All other entries stay byte for byte. pageSize is in bytes.
func Resolve(dir, name string, pageSize int64, parts func(addr uint64, count int64) ([]Part, error)) error {
	path := filepath.Join(dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read CRIU images: %w", err)
	}
	resolved, err := resolve(name, data, pageSize, parts)
	if err != nil || resolved == nil {
		return err
	}
	// Nobody else reads the images yet: a dump that is interrupted here is thrown away.
	if err := os.WriteFile(path, resolved, 0o600); err != nil {
		return fmt.Errorf("write CRIU images: %w", err)
	}
	return nil
}

// resolve gives nil where nothing is in a parent.
func resolve(name string, data []byte, pageSize int64, parts func(addr uint64, count int64) ([]Part, error)) (out []byte, err error) {
	inParent := false
	var entries []byte
	id, err := readPagemap(name, bytes.NewReader(data), func(record []byte, e entry) error {
		if e.flags&flagParent == 0 {
			entries = records.Append(entries, record)
			return nil
		}
		inParent = true
		if e.addr > maxAddress || e.count > MaxPages {
			return Malformed(name, "%d pages at %#x are outside of any address space", e.count, e.addr)
		}
		list, err := parts(e.addr, int64(e.count))
		if err != nil {
			return err
		}
		addr := e.addr
		for _, p := range list {
			if p.Addr != addr || p.Count <= 0 {
				return Malformed(name, "%d pages of the parent at %#x continue with %d at %#x", e.count, e.addr, p.Count, p.Addr)
			}
			addr += uint64(p.Count * pageSize)
			if entries, err = appendMessage(entries, present(p, e.wide)); err != nil {
				return err
			}
		}
		if addr != e.addr+e.count*uint64(pageSize) {
			return Malformed(name, "%d pages of the parent at %#x end at %#x", e.count, e.addr, addr)
		}
		return nil
	})
	if err != nil || !inParent {
		return nil, err
	}
	if out, err = EmptyPagemap(uint32(id)); err != nil {
		return nil, err
	}
	return append(out, entries...), nil
}

// present makes an entry of pages that are present. wide: the number of pages is in the field of 64 bits, and 0 in the other, which older images require.
func present(p Part, wide bool) *pagemap.PagemapEntry {
	flags := uint32(flagPresent)
	if p.Lazy {
		flags |= flagLazy
	}
	m := &pagemap.PagemapEntry{Vaddr: &p.Addr, CompatNrPages: new(uint32), Flags: &flags}
	if wide {
		m.NrPages = new(uint64(p.Count))
	} else {
		*m.CompatNrPages = uint32(p.Count)
	}
	return m
}
