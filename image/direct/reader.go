package direct

import (
	"context"
	"errors"
	"io"
	"os"
)

// Reader reads a [File] also one byte after the other. Read and Seek are for one goroutine, ReadAt is for several.
type Reader struct {
	file *File
	pos  int64
	buf  []byte // nil: nothing is read ahead
	at   int64  // where in the file it begins
	n    int    // how much of it is read
}

// NewReader reads f from its begin on. Close of the reader closes it.
func NewReader(f *os.File) *Reader { return &Reader{file: New(f)} }

// ReadAt implements [io.ReaderAt].
func (r *Reader) ReadAt(p []byte, off int64) (int, error) { return r.file.ReadAt(p, off) }

// ReadAhead is [File.ReadAhead].
func (r *Reader) ReadAhead(ctx context.Context, n int64) { r.file.ReadAhead(ctx, n) }

// Read implements [io.Reader].
func (r *Reader) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if b := r.ahead(); len(b) > 0 {
		n = copy(p, b)
		r.pos += int64(n)
		return n, nil
	}
	if len(p) >= Piece {
		n, err = r.ReadAt(p, r.pos)
		r.pos += int64(n)
		if n > 0 && errors.Is(err, io.EOF) {
			err = nil
		}
		return n, err
	}
	if r.buf == nil {
		r.buf = Lend()
	}
	// Up to a multiple of Align, so that what follows begins there.
	r.at = r.pos
	if r.n, err = r.file.ReadAt(r.buf[:Piece-r.pos%Align], r.pos); r.n == 0 {
		return 0, err
	}
	n = copy(p, r.buf[:r.n])
	r.pos += int64(n)
	return n, nil
}

// ahead is what is read already and comes next.
func (r *Reader) ahead() []byte {
	if r.buf == nil || r.pos < r.at || r.pos >= r.at+int64(r.n) {
		return nil
	}
	return r.buf[r.pos-r.at : r.n]
}

// Seek implements [io.Seeker].
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.pos
	case io.SeekEnd:
		info, err := r.file.f.Stat()
		if err != nil {
			return r.pos, err
		}
		offset += info.Size()
	}
	if offset < 0 {
		return r.pos, os.ErrInvalid
	}
	r.pos = offset
	return offset, nil
}

// Close implements [io.Closer].
func (r *Reader) Close() error {
	if r.buf != nil {
		Return(r.buf)
		r.buf, r.n = nil, 0
	}
	return r.file.Close()
}
