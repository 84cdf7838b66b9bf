package pageserver

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Sink takes pages. Its methods are called by one goroutine.
type Sink interface {
	// Begin begins the pagemap image of this name, whose pages CRIU would have put into the pages file with this number.
	Begin(pagemap string, file uint32) error
	// Pages takes count pages from addr on, which it reads from r completely. Addresses ascend. lazy says that the process can be
	// restored before it has them.
	Pages(addr, count uint64, lazy bool, r io.Reader) error
	// End says that all pages were sent.
	End() error
}

// Rounds is a [Sink] that has what earlier rounds of a pre-dump have brought: CRIU leaves out what has not been written to since.
type Rounds interface {
	Sink
	// Has tells whether the round before has brought this pagemap.
	Has(pagemap string) bool
	// Unchanged takes note of count pages from addr on that are what they were in the round before. They ascend, together with Pages.
	Unchanged(addr, count uint64) error
}

// Limits of what is believed.
const (
	maxAddress  = 1 << 57
	maxPagemaps = 1 << 23
)

// Serve takes what one CRIU sends over conn until it says that this was all: pagemap images go to dir, unless that is empty, pages to
// sink. A pagemap image of a sink that is [Rounds] says which pages are in the round before. first, unless
// nil, is called when the first command has come. A CRIU that sends nothing gives io.EOF, one that does not end properly
// io.ErrUnexpectedEOF, one that is not understood a [*ProtocolError]; errors of the sink are passed on. After an error CRIU must
// be hung up on: its dump fails then.
func Serve(conn io.ReadWriter, dir string, pageSize int64, sink Sink, first func()) error {
	s := &server{
		in:  commands{r: bufio.NewReaderSize(conn, 32<<10)},
		out: conn, dir: dir, pageSize: uint64(pageSize), sink: sink, seen: make(map[uint64]struct{}),
	}
	s.rounds, _ = sink.(Rounds)
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
	sink     Sink
	rounds   Rounds // the same; nil: there are none

	seen    map[uint64]struct{} // targets that were begun
	target  uint64
	current *pagemap // of target; nil: none is written
	begun   bool     // target was
	parent  bool     // the round before has target
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
			err = s.tellParent(c.target)
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

// tellParent says whether the round before has a pagemap.
func (s *server) tellParent(target uint64) error {
	name, err := pagemapName(target)
	if err != nil {
		return err
	}
	if s.has(name) {
		return s.answer(1)
	}
	return s.answer(0)
}

func (s *server) has(pagemap string) bool { return s.rounds != nil && s.rounds.Has(pagemap) }

// open begins a pagemap, and answers whether the round before has it.
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
	if s.dir != "" {
		if s.current, err = createPagemap(s.dir, name, file, s.in.length); err != nil {
			return err
		}
	}
	s.target, s.end, s.begun, s.parent = target, 0, true, s.has(name)
	if err := s.sink.Begin(name, file); err != nil {
		return err
	}
	answer := []byte{0}
	if s.parent {
		answer[0] = 1
	}
	if _, err := s.out.Write(answer); err != nil {
		return fmt.Errorf("answer CRIU: %w", err)
	}
	return nil
}

// add takes a pagemap entry and its pages.
func (s *server) add(c command) error {
	switch {
	case !s.begun || c.target != s.target:
		return misunderstood("pages of %#x, which was not begun", c.target)
	case c.flags&^flagsKnown != 0 || c.flags&flagParent != 0 && (!s.parent || c.flags&flagPresent != 0):
		return misunderstood("pages with flags %#x", c.flags)
	case c.addr%s.pageSize != 0 || c.addr < s.end || c.addr > maxAddress || c.count == 0 || c.count > (maxAddress-c.addr)/s.pageSize:
		return misunderstood("%d pages at %#x after %#x", c.count, c.addr, s.end)
	}
	if s.current != nil {
		if err := s.current.add(c); err != nil {
			return err
		}
	}
	s.end = c.addr + c.count*s.pageSize
	switch {
	case c.flags&flagPresent != 0:
		return s.sink.Pages(c.addr, c.count, c.flags&flagLazy != 0, s.in.r)
	case c.flags&flagParent != 0:
		return s.rounds.Unchanged(c.addr, c.count)
	}
	return nil
}

// leave ends the pagemap that was begun last.
func (s *server) leave() error {
	s.begun = false
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
