package rootfs

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A file with holes is in a layer as GNU tar has it in version 1.0 ("Storing Sparse Files" in its manual): records of a pax header say
// that it is one, and its contents begin with a map of what is not a hole. Go's archive/tar cannot write such files, and reads their holes as
// zeros. So this file writes and reads them itself. It gives archive/tar the same records under the prefix sparseHidden, which archive/tar ignores.
const (
	sparsePrefix = "GNU.sparse."
	sparseHidden = "GNU_sparse."
)

const (
	tarBlock = 512
	// maxRecords bounds a pax header, as Go's archive/tar does.
	maxRecords = 1 << 20
	// minHole is the shortest hole that is kept. Shorter ones are zeros in the layer, which compress well.
	minHole = 1 << 20
	// maxExtents bounds how many parts a file has; 64 MiB of memory.
	maxExtents = 4 << 20
)

// extent is a part of a file that is not a hole.
type extent struct{ offset, length int64 }

// extentsOf lists what of a file is not a hole.
func extentsOf(f *os.File, size int64) ([]extent, error) {
	for hole := int64(minHole); ; hole *= 2 {
		if extents, err := extentsBetween(f, size, hole); err != nil || len(extents) <= maxExtents {
			return extents, err
		}
	}
}

// extentsBetween lists what is between holes of the length hole and more. It stops where there is more than maxExtents.
func extentsBetween(f *os.File, size, hole int64) (extents []extent, err error) {
	for at := int64(0); at < size && len(extents) <= maxExtents; {
		from, to, err := dataRange(f, at, size)
		if err != nil {
			return nil, err
		}
		switch last := len(extents) - 1; {
		case from-at >= hole:
			extents = append(extents, extent{from, to - from})
		case last < 0:
			extents = append(extents, extent{at, to - at})
		default:
			extents[last].length = to - extents[last].offset
		}
		at = to
	}
	return extents, nil
}

// sparse writes the header and the map of a file with holes.
func (l *layerWriter) sparse(h *tar.Header, extents []extent) error {
	m := fmt.Appendf(nil, "%d\n", len(extents))
	stored := int64(0)
	for _, x := range extents {
		m = fmt.Appendf(m, "%d\n%d\n", x.offset, x.length)
		stored += x.length
	}
	m = append(m, make([]byte, padding(int64(len(m))))...)
	real := *h
	real.PAXRecords = map[string]string{sparseHidden + "major": "1", sparseHidden + "minor": "0", sparseHidden + "realsize": strconv.FormatInt(h.Size, 10)}
	for key, value := range h.PAXRecords {
		real.PAXRecords[key] = value
	}
	real.Size = int64(len(m)) + stored
	encoded, err := encode(&real)
	if err != nil {
		return err
	}
	// The header before the file's own, which is the last block, is the pax header.
	if err := eachRecord(encoded[tarBlock:len(encoded)-tarBlock], func(key, _ []byte) {
		if bytes.HasPrefix(key, []byte(sparseHidden)) {
			copy(key, sparsePrefix)
		}
	}); err != nil {
		return err
	}
	if err := l.tw.Flush(); err != nil {
		return err
	}
	_, err = l.w.Write(append(encoded, m...))
	return err
}

// encode gives a header as it is in a tar.
func encode(h *tar.Header) ([]byte, error) {
	var b bytes.Buffer
	err := tar.NewWriter(&b).WriteHeader(h)
	return b.Bytes(), err
}

// eachRecord visits the records of a pax header, which may have zeros behind them. Source: POSIX.1-2024, pax, "pax Extended Header".
func eachRecord(pax []byte, visit func(key, value []byte)) error {
	for len(bytes.TrimRight(pax, "\x00")) > 0 {
		digits, _, _ := bytes.Cut(pax[:min(len(pax), 8)], []byte(" "))
		n, err := strconv.Atoi(string(digits))
		if err != nil || n < len(digits)+2 || n > len(pax) {
			return fmt.Errorf("a pax header has %.20q for a record", pax)
		}
		key, value, _ := bytes.Cut(pax[len(digits)+1:n-1], []byte("="))
		visit(key, value)
		pax = pax[n:]
	}
	return nil
}

// padding is what follows n bytes of contents.
func padding(n int64) int64 { return -n & (tarBlock - 1) }

// sparseReader passes a layer on, and of a sparse file the header of an empty one. It writes the contents itself when it is asked for
// what comes next, for then whoever reads has made that file. What Diff does not write, it refuses.
type sparseReader struct {
	layer io.Reader
	root  int    // directory that the layer is applied to
	ready []byte // to pass on
	left  int64  // after that: bytes of the layer to pass on
	file  *sparseFile
	ended bool
}

// sparseFile is one whose header was passed on.
type sparseFile struct {
	name   string
	size   int64 // with holes
	stored int64 // map and contents in the layer
}

// Read implements [io.Reader].
func (r *sparseReader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 && r.left == 0 {
		if r.ended {
			return r.layer.Read(p)
		}
		if r.file != nil {
			f := r.file
			r.file = nil
			if err := r.fill(f); err != nil {
				return 0, err
			}
		}
		if err := r.header(); err != nil {
			return 0, err
		}
	}
	if len(r.ready) > 0 {
		n := copy(p, r.ready)
		r.ready = r.ready[n:]
		return n, nil
	}
	n, err := r.layer.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	if err == io.EOF && r.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// header reads up to the contents of the next entry.
func (r *sparseReader) header() error {
	head := make([]byte, tarBlock)
	if n, err := io.ReadFull(r.layer, head); err != nil {
		r.ready, r.ended = head[:n], true // which whoever reads knows how to take
		return nil
	}
	if len(bytes.Trim(head, "\x00")) == 0 {
		r.ready, r.ended = head, true
		return nil
	}
	var size *int64
	sparse := false
	if head[156] == tar.TypeXHeader {
		n, err := octal(head)
		if err != nil || n > maxRecords {
			return &LayerError{Reason: "a pax header is too long"}
		}
		rest := make([]byte, n+padding(n)+tarBlock)
		if _, err := io.ReadFull(r.layer, rest); err != nil {
			return io.ErrUnexpectedEOF
		}
		err = eachRecord(rest[:n], func(key, value []byte) {
			if string(key) == "size" {
				if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
					size = &n
				}
			}
			if bytes.HasPrefix(key, []byte(sparsePrefix)) {
				sparse = true
				copy(key, sparseHidden)
			}
		})
		if err != nil {
			return &LayerError{Reason: err.Error()}
		}
		head = append(head, rest...)
	}
	own := head[len(head)-tarBlock:]
	switch own[156] {
	case tar.TypeReg, 0:
		n, err := octal(own)
		if size != nil {
			n = *size
		}
		if err != nil || n < 0 || n > math.MaxInt64-tarBlock {
			return &LayerError{Reason: "a file's length is no number"}
		}
		r.left = n + padding(n)
	case tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo: // nothing follows, whatever is said
	default:
		return &LayerError{Reason: fmt.Sprintf("an entry is of type %q; a sparse file of another kind, or what no layer of a snapshot has", own[156])}
	}
	r.ready = head
	if sparse {
		return r.hide(head)
	}
	return nil
}

// octal reads the length of a header's contents.
func octal(head []byte) (int64, error) {
	digits := strings.Trim(string(head[124:136]), " \x00")
	if digits == "" {
		return 0, nil
	}
	return strconv.ParseInt(digits, 8, 64)
}

// hide has the header of an empty file passed on.
func (r *sparseReader) hide(head []byte) error {
	h, err := tar.NewReader(bytes.NewReader(head)).Next()
	if err != nil {
		return err
	}
	record := func(key string) string {
		value := h.PAXRecords[sparseHidden+key]
		delete(h.PAXRecords, sparseHidden+key)
		return value
	}
	major, minor := record("major"), record("minor")
	size, err := strconv.ParseInt(record("realsize"), 10, 64)
	if err != nil || size < 0 || major != "1" || minor != "0" || h.Typeflag != tar.TypeReg {
		return &LayerError{Path: h.Name, Reason: "is a sparse file of another kind than version 1.0"}
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, sparseHidden) {
			return &LayerError{Path: h.Name, Reason: fmt.Sprintf("is a sparse file with the record %.100q", key)}
		}
	}
	r.file = &sparseFile{name: h.Name, size: size, stored: h.Size}
	h.Size, r.left = 0, 0
	r.ready, err = encode(h)
	return err
}

// fill writes the contents of a file that exists already. The file keeps its owner, mode, times and attributes.
func (r *sparseReader) fill(f *sparseFile) (err error) {
	refuse := func(reason string) error { return &LayerError{Path: f.name, Reason: "is a sparse file " + reason} }
	in := io.LimitReader(r.layer, f.stored)
	extents, err := readMap(in)
	if err != nil {
		return refuse("whose map of holes is none: " + err.Error())
	}
	end, stored := int64(0), int64(0)
	for _, x := range extents {
		if x.offset < end || x.offset > f.size || x.length > f.size-x.offset {
			return refuse("whose map of holes is not in order")
		}
		end, stored = x.offset+x.length, stored+x.length
	}
	if stored != in.(*io.LimitedReader).N {
		return refuse("whose map of holes is another's")
	}
	fd, err := unix.Openat2(r.root, strings.TrimLeft(f.name, "/"), &unix.OpenHow{
		Flags: unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return refuse("which cannot be opened: " + err.Error())
	}
	file := os.NewFile(uintptr(fd), f.name)
	defer func() { err = errors.Join(err, file.Close()) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 {
		return refuse("in the place of something else")
	}
	capability := make([]byte, 64)
	n, err := unix.Fgetxattr(fd, xattrCapability, capability) // writing takes it away
	if err != nil {
		n = 0
	}
	if err := file.Truncate(f.size); err != nil {
		return err
	}
	for _, x := range extents {
		if _, err := io.CopyN(io.NewOffsetWriter(file, x.offset), in, x.length); err != nil {
			return err
		}
	}
	if n > 0 {
		if err := unix.Fsetxattr(fd, xattrCapability, capability[:n], 0); err != nil {
			return os.NewSyscallError("fsetxattr", err)
		}
	}
	if err := unix.UtimesNanoAt(fd, "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH); err != nil {
		return os.NewSyscallError("utimensat", err)
	}
	_, err = io.CopyN(io.Discard, r.layer, padding(f.stored))
	return err
}

// readMap reads the map of a sparse file and what fills its last block.
func readMap(in io.Reader) (extents []extent, err error) {
	var text []byte
	number := func() (int64, error) {
		i := bytes.IndexByte(text, '\n')
		for ; i < 0; i = bytes.IndexByte(text, '\n') {
			if len(text) > 20 {
				return 0, errors.New("a number is too long")
			}
			text = append(bytes.Clone(text), make([]byte, tarBlock)...)
			if _, err := io.ReadFull(in, text[len(text)-tarBlock:]); err != nil {
				return 0, errors.New("it is cut short")
			}
		}
		n, err := strconv.ParseUint(string(text[:i]), 10, 63)
		text = text[i+1:]
		return int64(n), err
	}
	count, err := number()
	if err == nil && count > maxExtents {
		err = fmt.Errorf("%d parts are more than %d", count, maxExtents)
	}
	for range count {
		var x extent
		if err == nil {
			x.offset, err = number()
		}
		if err == nil {
			x.length, err = number()
		}
		if err != nil {
			return nil, err
		}
		extents = append(extents, x)
	}
	return extents, err
}
