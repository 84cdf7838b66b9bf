package format

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// TarBlock is what headers and contents are multiples of, in bytes.
const TarBlock = 512

// Both prefixes are of the same length.
const (
	prefix = "GNU.sparse."
	hidden = "GNU_sparse."
)

const (
	// maxRecords bounds a pax header, in bytes, as archive/tar does.
	maxRecords = 1 << 20
	// minHole is the shortest hole that is kept, in bytes. Shorter ones are zeros in the tar.
	minHole = 1 << 20
	// maxSpans bounds how many parts a file has; 64 MiB of memory.
	maxSpans = 4 << 20
)

// ErrTar is the kind of the error that a tar is not as it should be.
var ErrTar = errors.New("not a tar of cryo")

func wrong(format string, a ...any) error { return failure.New(ErrTar, "", format, a...) }

// TarPadding is what fills the last block of n bytes.
func TarPadding(n int64) int64 { return -n & (TarBlock - 1) }

// DataSpan is a part of a file that is not a hole, in bytes.
type DataSpan struct{ Offset, Length int64 }

// DataSpans lists what is not a hole in the first size bytes of a file. Where there would be too many, the holes of the rest count as contents too.
func DataSpans(f *os.File, size int64) (spans []DataSpan, err error) {
	for at := int64(0); at < size; {
		from, to, err := NextData(f, at, size)
		if err != nil {
			return nil, err
		}
		switch last := len(spans) - 1; {
		case from-at >= minHole && len(spans) < maxSpans-1:
			spans = append(spans, DataSpan{from, to - from})
		case last < 0:
			spans = append(spans, DataSpan{at, to - at})
		default:
			spans[last].Length = to - spans[last].Offset
		}
		at = to
	}
	return spans, nil
}

// NextData returns the next part of a file of size bytes, from at on, that is not a hole, an empty one at the end where there is no more. Source: lseek(2).
func NextData(f *os.File, at, size int64) (from, to int64, err error) {
	from, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP):
		return at, size, nil // holes cannot be told
	case err != nil:
		return 0, 0, os.NewSyscallError("lseek", err)
	}
	to, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, os.NewSyscallError("lseek", err)
	}
	return min(from, size), min(to, size), nil
}

// EncodeTarHeader returns what comes before the contents of an entry. The contents are the spans one after the other, and what fills their last block. Size is the
// file's length, holes included; a file without holes has one extent, and what is no file none.
func EncodeTarHeader(h *tar.Header, spans []DataSpan) ([]byte, error) {
	if h.Size == 0 || len(spans) == 1 && spans[0] == (DataSpan{0, h.Size}) {
		return encodeTar(h)
	}
	if n := len(spans); n == 0 || spans[n-1].Offset+spans[n-1].Length < h.Size {
		spans = append(spans[:n:n], DataSpan{Offset: h.Size}) // by which GNU tar knows how long the file is
	}
	m := fmt.Appendf(nil, "%d\n", len(spans))
	stored := int64(0)
	for _, x := range spans {
		m = fmt.Appendf(m, "%d\n%d\n", x.Offset, x.Length)
		stored += x.Length
	}
	m = append(m, make([]byte, TarPadding(int64(len(m))))...)
	sparse := *h
	sparse.PAXRecords = map[string]string{hidden + "major": "1", hidden + "minor": "0", hidden + "realsize": strconv.FormatInt(h.Size, 10)}
	for key, value := range h.PAXRecords {
		sparse.PAXRecords[key] = value
	}
	sparse.Size = int64(len(m)) + stored
	b, err := encodeTar(&sparse)
	if err != nil {
		return nil, err
	}
	// The header before the file's own, which is the last block, is the pax header.
	if _, err := rename(b[TarBlock:len(b)-TarBlock], hidden, prefix); err != nil {
		return nil, err
	}
	return append(b, m...), nil
}

func encodeTar(h *tar.Header) ([]byte, error) {
	var b bytes.Buffer
	err := tar.NewWriter(&b).WriteHeader(h)
	return b.Bytes(), err
}

// rename replaces a prefix in the keys of a pax header's records, and says whether a key had it. Zeros may follow the records. Source: POSIX.1-2024, pax, "pax
// Extended Header".
func rename(pax []byte, from, to string) (found bool, err error) {
	for len(bytes.TrimRight(pax, "\x00")) > 0 {
		digits, _, _ := bytes.Cut(pax[:min(len(pax), 8)], []byte(" "))
		n, err := strconv.Atoi(string(digits))
		if err != nil || n < len(digits)+2 || n > len(pax) {
			return found, wrong("a pax header has %.20q for a record", pax)
		}
		if key := pax[len(digits)+1 : n-1]; bytes.HasPrefix(key, []byte(from)) {
			found = true
			copy(key, to)
		}
		pax = pax[n:]
	}
	return found, nil
}

// TarHead is what comes before the contents of an entry, or before the map of a file with holes.
type TarHead struct {
	tar.Header        // its Size is the file's length, holes included
	Stored     int64  // bytes of contents in the tar, the map included
	Sparse     bool   // there is a map, see ReadMap
	Raw        []byte // as archive/tar reads it; of a file with holes it says nothing of them
}

// ReadTarHead reads up to the contents of the next entry. It returns [io.EOF] where the tar ends, [io.ErrUnexpectedEOF] where it is cut short, an error of the kind [ErrTar] for
// what no tar of cryo has, and errors of r as they are.
func ReadTarHead(r io.Reader) (*TarHead, error) {
	raw := make([]byte, TarBlock)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, cut(err)
	}
	if len(bytes.Trim(raw, "\x00")) == 0 {
		return nil, io.EOF
	}
	sparse := false
	if raw[156] == tar.TypeXHeader {
		n, err := strconv.ParseInt(strings.Trim(string(raw[124:136]), " \x00"), 8, 64)
		if err != nil || n < 0 || n > maxRecords {
			return nil, wrong("a pax header is too long")
		}
		rest := make([]byte, n+TarPadding(n)+TarBlock)
		if _, err := io.ReadFull(r, rest); err != nil {
			return nil, cut(err)
		}
		if sparse, err = rename(rest[:n], prefix, hidden); err != nil {
			return nil, err
		}
		raw = append(raw, rest...)
	}
	switch kind := raw[len(raw)-TarBlock+156]; kind {
	case tar.TypeReg, 0, tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
	default:
		return nil, wrong("an entry is of type %q; a sparse file of another kind, or what cryo does not write", kind)
	}
	h, err := tar.NewReader(bytes.NewReader(raw)).Next()
	if err != nil {
		return nil, wrong("a header cannot be read: %v", err)
	}
	head := &TarHead{Header: *h, Stored: h.Size, Sparse: sparse, Raw: raw}
	if h.Typeflag != tar.TypeReg { // nothing follows, whatever is said
		head.Size, head.Stored = 0, 0
	}
	if sparse {
		err = head.hide()
	}
	return head, err
}

// cut is the error of a tar that is too short.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// hide takes what says that there are holes out of a head.
func (h *TarHead) hide() (err error) {
	record := func(key string) string {
		value := h.PAXRecords[hidden+key]
		delete(h.PAXRecords, hidden+key)
		return value
	}
	major, minor := record("major"), record("minor")
	size, err := strconv.ParseInt(record("realsize"), 10, 64)
	if err != nil || size < 0 || major != "1" || minor != "0" || h.Typeflag != tar.TypeReg {
		return wrong("%.300q is a sparse file of another kind than version 1.0", h.Name)
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, hidden) {
			return wrong("%.300q is a sparse file with the record %.100q", h.Name, key)
		}
	}
	h.Header.Size = 0
	h.Raw, err = encodeTar(&h.Header)
	h.Header.Size = size
	return err
}

// ReadMap reads the map of a sparse file from the first Stored bytes after its head. The spans ascend and lie in the file, and what they have is all that is left of
// these bytes.
func (h *TarHead) ReadMap(r io.Reader) ([]DataSpan, error) {
	left := h.Stored
	spans, err := readMap(r, &left)
	if err != nil {
		return nil, err
	}
	end := int64(0)
	for _, x := range spans {
		if x.Offset < end || x.Offset > h.Size || x.Length > h.Size-x.Offset {
			return nil, wrong("%.300q is a sparse file whose map of holes is not in order", h.Name)
		}
		end, left = x.Offset+x.Length, left-x.Length
	}
	if left != 0 {
		return nil, wrong("%.300q is a sparse file whose map of holes is another's", h.Name)
	}
	return spans, nil
}

// readMap reads a map and what fills its last block, and takes that from left.
func readMap(r io.Reader, left *int64) (spans []DataSpan, err error) {
	var text []byte
	number := func() (int64, error) {
		i := bytes.IndexByte(text, '\n')
		for ; i < 0; i = bytes.IndexByte(text, '\n') {
			if len(text) > 20 || *left < TarBlock {
				return 0, wrong("the map of a sparse file is none")
			}
			text = append(bytes.Clone(text), make([]byte, TarBlock)...)
			if _, err := io.ReadFull(r, text[len(text)-TarBlock:]); err != nil {
				return 0, cut(err)
			}
			*left -= TarBlock
		}
		n, err := strconv.ParseUint(string(text[:i]), 10, 63)
		if err != nil {
			return 0, wrong("the map of a sparse file has %.20q for a number", text[:i])
		}
		text = text[i+1:]
		return int64(n), nil
	}
	count, err := number()
	if err == nil && count > maxSpans {
		err = wrong("the map of a sparse file has %d parts, more than %d", count, maxSpans)
	}
	for range count {
		var x DataSpan
		if err == nil {
			x.Offset, err = number()
		}
		if err == nil {
			x.Length, err = number()
		}
		if err != nil {
			return nil, err
		}
		spans = append(spans, x)
	}
	return spans, err
}
