package pages

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
)

// Magic numbers, from CRIU's criu/include/magic.h.
const (
	magicCommon    = 0x54564319 // IMG_COMMON_MAGIC, first in every image of format 1.1
	magicPagemap   = 0x56084025
	magicPSTree    = 0x50273030
	magicCore      = 0x55053847
	magicMM        = 0x57492820
	magicInventory = 0x58313116
)

// maxRecord bounds one protobuf record. Pagemap entries have some 20 bytes, a core image a few KiB.
const maxRecord = 4 << 20

// records reads an image of CRIU's: two magic numbers, then length-prefixed records.
type records struct {
	file string
	r    *bufio.Reader
	buf  []byte
}

func newRecords(file string, r io.Reader, magic uint32) (*records, error) {
	rs := newBareRecords(file, r)
	var head [8]byte
	if _, err := io.ReadFull(rs.r, head[:]); err != nil {
		return nil, rs.failed("header", err)
	}
	if got := binary.LittleEndian.Uint32(head[0:]); got != magicCommon {
		return nil, Malformed(file, "magic number %#x instead of %#x", got, uint32(magicCommon))
	}
	if got := binary.LittleEndian.Uint32(head[4:]); got != magic {
		return nil, Malformed(file, "magic number %#x instead of %#x", got, magic)
	}
	return rs, nil
}

// newBareRecords reads what follows the magic numbers.
func newBareRecords(file string, r io.Reader) *records {
	return &records{file: file, r: bufio.NewReaderSize(r, 64<<10)}
}

// next gives the next record, valid until the next call, and io.EOF after the last.
func (rs *records) next() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(rs.r, size[:]); err == io.EOF {
		return nil, io.EOF
	} else if err != nil {
		return nil, rs.failed("length of a record", err)
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxRecord {
		return nil, Malformed(rs.file, "a record of %d bytes; at most %d are allowed", n, maxRecord)
	}
	if int(n) > cap(rs.buf) {
		// Grows with what is there, not with what the length claims.
		rs.buf = make([]byte, 0, max(512, min(int(n), 64<<10)))
	}
	rs.buf = rs.buf[:0]
	for len(rs.buf) < int(n) {
		step := min(int(n)-len(rs.buf), 64<<10)
		if len(rs.buf)+step > cap(rs.buf) {
			rs.buf = append(make([]byte, 0, min(int(n), 2*cap(rs.buf)+step)), rs.buf...)
		}
		at := len(rs.buf)
		rs.buf = rs.buf[:at+step]
		if _, err := io.ReadFull(rs.r, rs.buf[at:]); err != nil {
			return nil, rs.failed("record", err)
		}
	}
	return rs.buf, nil
}

// appendRecord appends a record as next reads it.
func appendRecord(b, record []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(record))), record...)
}

// appendMessage is appendRecord of a message.
func appendMessage(b []byte, m proto.Message) ([]byte, error) {
	record, err := proto.Marshal(m)
	return appendRecord(b, record), err
}

// unmarshal reads a record into m; problem is what is wrong where it cannot be. Required fields may be missing in the images of other versions: nobody wants
// all of them here.
func unmarshal(name string, record []byte, m proto.Message, problem string) error {
	if err := (proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true}).Unmarshal(record, m); err != nil {
		return Malformed(name, "%s: %v", problem, err)
	}
	return nil
}

func (rs *records) failed(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Malformed(rs.file, "ends within a %s", what)
	}
	return fmt.Errorf("read CRIU image %s: %w", rs.file, err)
}

// readNumbered reads the image of a kind, as mm, of the process or thread with a number. One that has none has nothing.
func readNumbered[T any](dir, kind string, number int, read func(name string, r io.Reader) ([]T, error)) ([]T, error) {
	name := fmt.Sprintf("%s-%d.img", kind, number)
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read CRIU images: %w", err)
	}
	defer f.Close()
	return read(name, f)
}

// readRecord reads the first record of an image into e, as unmarshal does.
func readRecord(name string, r io.Reader, magic uint32, e proto.Message, problem string) error {
	rs, err := newRecords(name, r, magic)
	if err != nil {
		return err
	}
	record, err := rs.next()
	if err == io.EOF {
		return Malformed(name, "is empty")
	} else if err != nil {
		return err
	}
	return unmarshal(name, record, e, problem)
}
