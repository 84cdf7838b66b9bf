package tmpfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const paxXattr = "SCHILY.xattr."

// errEnd is at the end of a tar.
var errEnd = errors.New("end of the tar")

// header is an entry as it is being read, with what headers before its own say.
type header struct {
	entry
	name, link   *string
	uid, gid     *uint32
	mtime, atime *unix.Timespec
	xattrs       []xattr
	size         *int64 // in the tar
	// Of a sparse file in GNU tar's version 1.0.
	sparseMajor, sparseMinor string
	sparseName               *string
	realSize                 *int64
}

// decode reads up to the contents of the next entry, of which stored() bytes and their padding follow. It returns errEnd where
// the tar ends.
func decode(r io.Reader) (*entry, error) {
	var h header
	for before := int64(0); ; {
		block, err := readBlock(r)
		if err != nil {
			return nil, err
		}
		if *block == [blockSize]byte{} {
			return nil, errEnd
		}
		size, err := h.fixed(block)
		if err != nil {
			return nil, err
		}
		kind := block[156]
		if kind != typePax && kind != typeLongName && kind != typeLongLink {
			return h.complete(r, block, kind, size)
		}
		if before += size; size < 0 || before > maxPax {
			return nil, fmt.Errorf("a header of %d bytes; %d are supported", size, maxPax)
		}
		data := make([]byte, size+padding(size))
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, cut(err)
		}
		data = data[:size]
		text := string(bytes.TrimRight(data, "\x00"))
		switch kind {
		case typeLongName:
			h.name = &text
		case typeLongLink:
			h.link = &text
		default:
			err = h.pax(string(data))
		}
		if err != nil {
			return nil, err
		}
	}
}

func readBlock(r io.Reader) (*[blockSize]byte, error) {
	var block [blockSize]byte
	if _, err := io.ReadFull(r, block[:]); err != nil {
		return nil, cut(err)
	}
	return &block, nil
}

// cut makes an end where none may be an error.
func cut(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("the image is cut short: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// fixed reads the fields that all headers have.
func (h *header) fixed(block *[blockSize]byte) (size int64, err error) {
	sum, err := number(block[148:156])
	if err != nil || sum != int64(checksum(block)) {
		return 0, errors.New("a header's checksum is wrong")
	}
	var mode, uid, gid, mtime int64
	for _, field := range []struct {
		into     *int64
		from, to int
	}{{&mode, 100, 108}, {&uid, 108, 116}, {&gid, 116, 124}, {&size, 124, 136}, {&mtime, 136, 148}} {
		if *field.into, err = number(block[field.from:field.to]); err != nil {
			return 0, err
		}
	}
	if uid < 0 || uid > math.MaxUint32 || gid < 0 || gid > math.MaxUint32 || mode < 0 {
		return 0, errors.New("a header's mode or owner is no such number")
	}
	if mtime <= -timeLimit || mtime >= timeLimit {
		return 0, errors.New("a header's time is no time")
	}
	h.mode, h.entry.uid, h.entry.gid = uint32(mode&0o7777), uint32(uid), uint32(gid)
	h.entry.mtime = unix.Timespec{Sec: mtime}
	h.entry.name, h.entry.link = text(block[:100]), text(block[157:257])
	return size, nil
}

// complete makes an entry of its header and of what was before it.
func (h *header) complete(r io.Reader, block *[blockSize]byte, kind byte, size int64) (*entry, error) {
	e := &h.entry
	gnu := bytes.Equal(block[257:265], []byte("ustar  \x00"))
	if prefix := text(block[345:500]); !gnu && prefix != "" && bytes.Equal(block[257:263], []byte("ustar\x00")) {
		e.name = prefix + "/" + e.name
	}
	e.kind = kind
	if kind == 0 || kind == '7' { // before POSIX; contiguous
		e.kind = typeFile
	}
	if kind == 0 && strings.HasSuffix(e.name, "/") {
		e.kind = typeDirectory
	}
	set(&e.name, h.name)
	set(&e.link, h.link)
	set(&e.uid, h.uid)
	set(&e.gid, h.gid)
	set(&e.mtime, h.mtime)
	set(&size, h.size)
	e.atime = e.mtime
	set(&e.atime, h.atime)
	e.xattrs = h.xattrs
	if size < 0 {
		return nil, fmt.Errorf("%.300q: a length of %d", e.name, size)
	}
	e.size = size
	switch e.kind {
	case typeFile:
		if h.sparseMajor != "" || h.sparseMinor != "" || h.realSize != nil || h.sparseName != nil {
			return h.readMap(r)
		}
	case typeSparse:
		if !gnu {
			return nil, fmt.Errorf("%.300q: a sparse file that is not GNU tar's", e.name)
		}
		return h.readOldMap(r, block)
	case typeCharacter, typeBlock:
		major, err := number(block[329:337])
		minor, err2 := number(block[337:345])
		if err := errors.Join(err, err2); err != nil || major < 0 || minor < 0 || major > math.MaxUint32 || minor > math.MaxUint32 {
			return nil, fmt.Errorf("%.300q: it is no device", e.name)
		}
		e.major, e.minor = uint32(major), uint32(minor)
	case typeHardLink, typeSymlink, typeDirectory, typeFIFO:
	default:
		return nil, fmt.Errorf("%.300q: it is of type %q, which is not supported", e.name, kind)
	}
	if e.kind != typeFile && e.size != 0 {
		return nil, fmt.Errorf("%.300q: it has contents and is no file", e.name)
	}
	return e, nil
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// text is a field up to its first NUL.
func text(field []byte) string {
	if i := bytes.IndexByte(field, 0); i >= 0 {
		field = field[:i]
	}
	return string(field)
}

// number reads a field: octal digits, or, with the first bit set, a signed number of as many bytes (GNU tar's manual, appendix D).
func number(field []byte) (int64, error) {
	if field[0]&0x80 == 0 {
		digits := strings.Trim(string(field), " \x00")
		if digits == "" {
			return 0, nil
		}
		n, err := strconv.ParseUint(digits, 8, 63)
		if err != nil {
			return 0, fmt.Errorf("a header has %.20q for a number", field)
		}
		return int64(n), nil
	}
	var n int64
	if field[0]&0x40 != 0 {
		n = -1
	}
	for i, c := range field {
		if i == 0 && n == 0 {
			c &^= 0x80
		}
		if n > math.MaxInt64>>8 || n < math.MinInt64>>8 {
			return 0, fmt.Errorf("a header has %x for a number", field)
		}
		n = n<<8 | int64(c)
	}
	return n, nil
}
