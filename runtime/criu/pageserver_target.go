package criu

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"
)

// Kinds of a target, its low 8 bits; the others are its number. Source: criu/page-xfer.c, encode_pm.
const (
	targetProcess = 1
	targetShared  = 2
)

// pagemapName is the name of the image that describes the memory of a target.
func pagemapName(target uint64) (string, error) {
	switch target & 0xff {
	case targetProcess:
		return fmt.Sprintf("pagemap-%d.img", target>>8), nil
	case targetShared:
		return fmt.Sprintf("pagemap-shmem-%d.img", target>>8), nil
	}
	return "", misunderstood("memory of the unknown kind %d", target&0xff)
}

// Magic numbers of a pagemap image. Source: criu/include/magic.h.
const (
	magicCommon  = 0x54564319
	magicPagemap = 0x56084025
)

// pagemap is a pagemap image that is being written, byte for byte as a CRIU that sends such commands writes it.
type pagemap struct {
	f      *os.File
	w      *bufio.Writer
	length int // of the commands
	buf    []byte
}

func createPagemap(dir, name string, file uint32, length int) (*pagemap, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write pagemap: %w", err)
	}
	m := &pagemap{f: f, w: bufio.NewWriterSize(f, 64<<10), length: length}
	head := binary.LittleEndian.AppendUint32(nil, magicCommon)
	head = binary.LittleEndian.AppendUint32(head, magicPagemap)
	if _, err := m.w.Write(head); err != nil {
		f.Close()
		return nil, fmt.Errorf("write pagemap: %w", err)
	}
	if err := m.record(field(nil, 1, uint64(file))); err != nil {
		f.Close()
		return nil, err
	}
	return m, nil
}

// add writes an entry. CRIU has had the number of pages in field 5 since its commands are wide, and 0 in field 2, which older
// images require.
func (m *pagemap) add(c command) error {
	m.buf = field(m.buf[:0], 1, c.addr)
	if m.length == narrow {
		m.buf = field(field(m.buf, 2, c.count), 4, uint64(c.flags))
	} else {
		m.buf = field(field(field(m.buf, 2, 0), 4, uint64(c.flags)), 5, c.count)
	}
	return m.record(m.buf)
}

func (m *pagemap) record(b []byte) error {
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(len(b)))
	if _, err := m.w.Write(length[:]); err != nil {
		return fmt.Errorf("write pagemap: %w", err)
	}
	if _, err := m.w.Write(b); err != nil {
		return fmt.Errorf("write pagemap: %w", err)
	}
	return nil
}

// close makes the image whole.
func (m *pagemap) close() error {
	err := m.w.Flush()
	if closed := m.f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write pagemap: %w", err)
	}
	return nil
}

func field(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}
