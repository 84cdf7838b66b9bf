package tmpfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// readMap reads the map of a sparse file before its contents: GNU tar's manual, "Storing Sparse Files", version 1.0.
func (h *header) readMap(r io.Reader) (*entry, error) {
	e := &h.entry
	if h.sparseMajor != "1" || h.sparseMinor != "0" || h.sparseName == nil || h.realSize == nil {
		return nil, fmt.Errorf("%.300q: sparse files are supported in version 1.0 only", e.name)
	}
	left := e.size // in the tar
	e.name, e.size, e.sparse = *h.sparseName, *h.realSize, true
	m := mapReader{r: r, left: left}
	count, err := m.number()
	if err == nil && count > maxExtents {
		err = fmt.Errorf("it has %d parts; %d are supported", count, maxExtents)
	}
	for range count {
		if err != nil {
			break
		}
		var x extent
		if x.offset, err = m.number(); err == nil {
			x.length, err = m.number()
		}
		e.extents = append(e.extents, x)
	}
	if err == nil {
		err = checkExtents(e.extents, e.size)
	}
	if err == nil && e.stored() != m.left {
		err = errors.New("its map of holes is another file's")
	}
	if err != nil {
		return nil, fmt.Errorf("%.300q: %w", e.name, err)
	}
	return e, nil
}

// mapReader reads decimal numbers, each with a line feed, block by block.
type mapReader struct {
	r    io.Reader
	left int64 // in the tar, of the file
	text []byte
}

func (m *mapReader) number() (int64, error) {
	i := bytes.IndexByte(m.text, '\n')
	for ; i < 0; i = bytes.IndexByte(m.text, '\n') {
		if len(m.text) > 20 || m.left < blockSize {
			return 0, errors.New("its map of holes is none")
		}
		block, err := readBlock(m.r)
		if err != nil {
			return 0, err
		}
		m.left -= blockSize
		m.text = append(m.text[:len(m.text):len(m.text)], block[:]...)
	}
	n, err := strconv.ParseUint(string(m.text[:i]), 10, 63)
	if err != nil {
		return 0, errors.New("its map of holes is none")
	}
	m.text = m.text[i+1:]
	return int64(n), nil
}

// readOldMap reads the map that GNU tar has in headers unless it is told to write pax: GNU tar's manual, appendix D, "GNU Extensions".
func (h *header) readOldMap(r io.Reader, block *[blockSize]byte) (*entry, error) {
	e := &h.entry
	left := e.size
	size, err := number(block[483:495])
	if err != nil || size < 0 {
		return nil, fmt.Errorf("%.300q: its length is no number", e.name)
	}
	e.kind, e.size, e.sparse = typeFile, size, true
	parts, more := block[386:482], block[482] != 0
	for {
		for ; len(parts) >= 24 && parts[0] != 0; parts = parts[24:] {
			offset, err := number(parts[:12])
			length, err2 := number(parts[12:24])
			if err := errors.Join(err, err2); err != nil {
				return nil, fmt.Errorf("%.300q: %w", e.name, err)
			}
			e.extents = append(e.extents, extent{offset, length})
		}
		if !more {
			break
		}
		if len(e.extents) > maxExtents {
			return nil, fmt.Errorf("%.300q: it has more than %d parts", e.name, maxExtents)
		}
		if block, err = readBlock(r); err != nil {
			return nil, err
		}
		parts, more = block[:504], block[504] != 0
	}
	if err := checkExtents(e.extents, e.size); err != nil {
		return nil, fmt.Errorf("%.300q: %w", e.name, err)
	}
	if e.stored() != left {
		return nil, fmt.Errorf("%.300q: its map of holes is another file's", e.name)
	}
	return e, nil
}
