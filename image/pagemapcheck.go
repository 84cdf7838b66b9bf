package image

import (
	"fmt"
	"io"
	"slices"

	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/pages"
)

// pagemapCheck compares the pagemap images of a snapshot with its index: CRIU would else read the memory of one process into
// another, or beyond the end of a file.
type pagemapCheck struct {
	x     *index.Index
	files map[string]index.File // by pagemap name; what is still to come
	runs  map[uint64][]index.Run
	seen  []*pages.Pagemap // those with pages
}

func newPagemapCheck(x *index.Index) *pagemapCheck {
	c := &pagemapCheck{x: x, files: make(map[string]index.File, len(x.Files)), runs: make(map[uint64][]index.Run, len(x.Files))}
	for _, f := range x.Files {
		c.files[f.Pagemap] = f
	}
	for i := range x.Frames {
		for _, r := range x.Frames[i].Runs {
			c.runs[r.File] = append(c.runs[r.File], r)
		}
	}
	return c
}

// file reads an image to its end, and checks it where it is a pagemap.
func (c *pagemapCheck) file(name string, r io.Reader) error {
	if pages.IsPagemapName(name) {
		m, err := pages.ReadPagemap(name, r, c.x.PageSize)
		if err != nil {
			return err
		}
		return c.pagemap(m)
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("unpack %s: %w", name, err)
	}
	return nil
}

func (c *pagemapCheck) pagemap(m *pages.Pagemap) error {
	f, ok := c.files[m.Name]
	delete(c.files, m.Name)
	wrong := func(format string, args ...any) error {
		return &pages.FormatError{File: m.Name, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case !ok && m.Count == 0:
		return nil
	case !ok:
		return wrong("has pages, but the index does not list it")
	case f.ID != m.Pages || f.Count != m.Count:
		return wrong("has %d pages in %s, by the index %d in %s", m.Count, pages.FileName(m.Pages), f.Count, pages.FileName(f.ID))
	}
	runs := c.runs[f.ID]
	delete(c.runs, f.ID)
	slices.SortFunc(runs, func(a, b index.Run) int { return int(min(max(a.First-b.First, -1), 1)) })
	at := 0 // both are ascending
	for _, r := range runs {
		for at < len(m.Runs) && m.Runs[at].First+m.Runs[at].Count <= r.First {
			at++
		}
		if at == len(m.Runs) {
			return wrong("has no page %d", r.First)
		}
		in := m.Runs[at]
		if r.First+r.Count > in.First+in.Count || in.Addr+uint64((r.First-in.First)*c.x.PageSize) != r.Addr {
			return wrong("does not have pages %d to %d at %#x", r.First, r.First+r.Count-1, r.Addr)
		}
	}
	c.seen = append(c.seen, m)
	return nil
}

// finish says whether all pagemaps of the index were there.
func (c *pagemapCheck) finish() error {
	for _, f := range c.x.Files {
		if _, missing := c.files[f.Pagemap]; missing {
			return fmt.Errorf("it lacks %s, which the index lists", f.Pagemap)
		}
	}
	return nil
}
