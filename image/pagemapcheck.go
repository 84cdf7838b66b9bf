package image

import (
	"fmt"
	"io"

	"github.com/cryo-project/cryo/image/format"
)

// pagemapCheck compares the pagemap images of a snapshot with its index: CRIU would else read the memory of one process into
// another, or beyond the end of a file.
type pagemapCheck struct {
	x      *format.Index
	files  map[string]format.PagesFile // by pagemap name; what is still to come
	frames map[uint64][]int32          // of each file, see [format.Index.ByFile]
	seen   []*format.Pagemap           // those with pages
}

func newPagemapCheck(x *format.Index) *pagemapCheck {
	c := &pagemapCheck{x: x, files: make(map[string]format.PagesFile, len(x.Files)), frames: x.ByFile()}
	for _, f := range x.Files {
		if !f.IsDevice() {
			c.files[f.Pagemap] = f
		}
	}
	return c
}

// strayRun looks for a run whose pages are not where the memory has them. It returns the first one and false, or true if all runs are in their place. Frames and memory ascend.
func strayRun(x *format.Index, frames []int32, memory []format.PageRun) (format.Run, bool) {
	for _, i := range frames {
		for _, r := range x.Frames[i].Runs { // both ascend
			for len(memory) > 0 && memory[0].First+memory[0].Count <= r.First {
				memory = memory[1:]
			}
			if len(memory) == 0 {
				return r, false
			}
			in := memory[0]
			if r.First+r.Count > in.First+in.Count || in.Addr+uint64((r.First-in.First)*x.PageSize) != r.Addr {
				return r, false
			}
		}
	}
	return format.Run{}, true
}

// file reads an image to its end, and checks it where it is a pagemap.
func (c *pagemapCheck) file(name string, r io.Reader) error {
	if format.IsPagemapName(name) {
		m, err := format.ReadPagemap(name, r, c.x.PageSize)
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

func (c *pagemapCheck) pagemap(m *format.Pagemap) error {
	f, ok := c.files[m.Name]
	delete(c.files, m.Name)
	wrong := func(layout string, args ...any) error {
		return format.MalformedImage(m.Name, layout, args...)
	}
	switch {
	case !ok && m.Count == 0:
		return nil
	case !ok:
		return wrong("has pages, but the index does not list it")
	case f.ID != m.Pages || f.Count != m.Count:
		return wrong("has %d pages in %s, by the index %d in %s", m.Count, format.PagesFileName(m.Pages), f.Count, format.PagesFileName(f.ID))
	}
	if r, ok := strayRun(c.x, c.frames[f.ID], m.Runs); !ok {
		return wrong("does not have pages %d to %d at %#x", r.First, r.First+r.Count-1, r.Addr)
	}
	delete(c.frames, f.ID)
	c.seen = append(c.seen, m)
	return nil
}

// finish returns an error unless all pagemaps of the index were there.
func (c *pagemapCheck) finish() error {
	for _, f := range c.x.Files {
		if f.IsDevice() {
			continue
		}
		if _, missing := c.files[f.Pagemap]; missing {
			return fmt.Errorf("it lacks %s, which the index lists", f.Pagemap)
		}
	}
	return nil
}
