package criu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// PageSink takes pages. Its methods are called by one goroutine.
type PageSink interface {
	// Begin begins a pagemap, whose pages CRIU would have put into the pages file with this number.
	Begin(file uint32) error
	// Pages takes count pages from addr on, which it reads from r completely. Addresses ascend.
	Pages(addr, count uint64, r io.Reader) error
	// End tells the sink that all pages were sent.
	End() error
}

// Limits of what is believed.
const (
	maxAddress  = 1 << 57
	maxPagemaps = 1 << 23
)

// ServePages takes what one CRIU sends over conn until it says that this was all: pagemap images go to dir, pages to sink. first, unless nil, is
// called when the first command has come. Of a CRIU that sends nothing the error is io.EOF, of one that does not end properly
// io.ErrUnexpectedEOF, of one that sends something unknown an error of kind NotImplemented; errors of the sink are passed on. After an error the
// caller closes conn: CRIU's dump fails then.
func ServePages(conn io.ReadWriter, dir string, pageSize int64, sink PageSink, first func()) error {
	s := &server{
		in:  commands{r: bufio.NewReaderSize(conn, 32<<10)},
		out: conn, dir: dir, pageSize: uint64(pageSize), sink: sink, seen: make(map[uint64]struct{}),
	}
	err := s.serve(first)
	if s.current != nil {
		err = errors.Join(err, s.current.close())
	}
	return err
}

type server struct {
	in       commands
	out      io.Writer
	dir      string
	pageSize uint64
	sink     PageSink

	seen    map[uint64]struct{} // targets that were begun
	target  uint64
	current *pagemap // of target
	end     uint64   // address behind the last entry
}

func (s *server) serve(first func()) error {
	for n := 0; ; n++ {
		c, err := s.in.next()
		if err != nil {
			if n > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("receive memory from CRIU: %w", err)
		}
		if n == 0 && first != nil {
			first()
		}
		switch c.code {
		case commandOpen:
			err = s.open(c.target)
		case commandParent:
			err = s.answer(0) // there is no parent
		case commandAdd:
			err = s.add(c)
		case commandClose, commandForceClose:
			return s.close()
		default:
			err = misunderstood("command %#x", c.code)
		}
		if err != nil {
			return err
		}
	}
}

// open begins a pagemap.
func (s *server) open(target uint64) error {
	if err := s.leave(); err != nil {
		return err
	}
	name, err := pagemapName(target)
	if err != nil {
		return err
	}
	if _, twice := s.seen[target]; twice || len(s.seen) >= maxPagemaps {
		return misunderstood("%s begins twice, or is one of too many", name)
	}
	s.seen[target] = struct{}{}
	file := uint32(len(s.seen)) // CRIU counts pages files from 1
	if s.current, err = createPagemap(s.dir, name, file, s.in.length); err != nil {
		return err
	}
	s.target, s.end = target, 0
	if err := s.sink.Begin(file); err != nil {
		return err
	}
	if _, err := s.out.Write([]byte{0}); err != nil {
		return fmt.Errorf("answer CRIU: %w", err)
	}
	return nil
}

// add takes a pagemap entry and its pages.
func (s *server) add(c command) error {
	switch {
	case s.current == nil || c.target != s.target:
		return misunderstood("pages of %#x, which was not begun", c.target)
	case c.flags&^flagsKnown != 0:
		return misunderstood("pages with flags %#x", c.flags)
	case c.addr%s.pageSize != 0 || c.addr < s.end || c.addr > maxAddress || c.count == 0 || c.count > (maxAddress-c.addr)/s.pageSize:
		return misunderstood("%d pages at %#x after %#x", c.count, c.addr, s.end)
	}
	if err := s.current.add(c); err != nil {
		return err
	}
	s.end = c.addr + c.count*s.pageSize
	if c.flags&flagPresent == 0 {
		return nil
	}
	return s.sink.Pages(c.addr, c.count, s.in.r)
}

// leave ends the pagemap that was begun last.
func (s *server) leave() error {
	if s.current == nil {
		return nil
	}
	m := s.current
	s.current = nil
	return m.close()
}

// close makes sure that all is there before it says so.
func (s *server) close() error {
	if err := s.leave(); err != nil {
		return err
	}
	if err := s.sink.End(); err != nil {
		return err
	}
	return s.answer(0)
}

func (s *server) answer(v int32) error {
	if err := binary.Write(s.out, binary.NativeEndian, v); err != nil {
		return fmt.Errorf("answer CRIU: %w", err)
	}
	return nil
}
