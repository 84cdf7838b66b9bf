package criu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// Commands, the low 16 bits of the first field. Source: criu/page-xfer.c.
const (
	commandOpen       = 4
	commandParent     = 5
	commandAdd        = 6
	commandClose      = 0x1023
	commandForceClose = 0x1024
)

// Flags of a pagemap entry, the high 16 bits. Source: criu/include/pagemap.h.
const (
	flagParent  = 1 << 0
	flagLazy    = 1 << 1
	flagPresent = 1 << 2
	flagsKnown  = flagLazy | flagPresent
)

// Lengths of a command: CRIU 4.2 made the number of pages a 64-bit one.
//
//	before 4.2   u32 command, u32 pages,              u64 address, u64 target
//	since        u32 command, u32 padding, u64 pages, u64 address, u64 target
const (
	narrow = 24
	wide   = 32
)

// command is one command.
type command struct {
	code, flags  uint32
	count        uint64 // pages
	addr, target uint64
}

// commands reads commands and what follows them.
type commands struct {
	r      *bufio.Reader
	length int // of a command; 0: not known yet
}

// next reads a command; io.EOF: there are no more.
func (c *commands) next() (command, error) {
	if c.length == 0 {
		if err := c.measure(); err != nil {
			return command{}, err
		}
	}
	b, err := c.peek(c.length)
	if err != nil {
		return command{}, err
	}
	order := binary.NativeEndian
	first := order.Uint32(b)
	m := command{code: first & 0xffff, flags: first >> 16}
	if c.length == narrow {
		m.count = uint64(order.Uint32(b[4:]))
	} else {
		m.count = order.Uint64(b[8:])
	}
	m.addr, m.target = order.Uint64(b[c.length-16:]), order.Uint64(b[c.length-8:])
	_, err = c.r.Discard(c.length)
	return m, err
}

// peek returns the next bytes, which it does not pass over.
func (c *commands) peek(length int) ([]byte, error) {
	b, err := c.r.Peek(length)
	if len(b) > 0 && errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// measure finds the length of commands from the first, which names a target unless there is no memory at all: in the longer
// form the target's place in the shorter one has the address, and that is 0.
func (c *commands) measure() error {
	b, err := c.peek(narrow)
	if err != nil {
		return err
	}
	switch code := binary.NativeEndian.Uint32(b); {
	case code == commandClose, code == commandForceClose:
		c.length = narrow // whatever follows: there is no other command
	case code != commandOpen && code != commandParent:
		return misunderstood("it begins with command %#x", code)
	case binary.NativeEndian.Uint64(b[16:]) != 0:
		c.length = narrow
	default:
		c.length = wide
	}
	return nil
}
