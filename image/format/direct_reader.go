package format

import (
	"context"
	"errors"
	"io"
	"os"
)

// DirectReader reads a [DirectFile] also one byte after the other. Read and Seek are for one goroutine, ReadAt is for several.
type DirectReader struct {
	file *DirectFile
	pos  int64
	buf  []byte // nil: nothing is read ahead
	at   int64  // where in the file it begins
	n    int    // how much of it is read
}

// NewDirectReader reads f from its begin on. Close of the reader closes it.
func NewDirectReader(f *os.File) *DirectReader { return &DirectReader{file: NewDirectFile(f)} }

// ReadAt implements [io.ReaderAt].
func (r *DirectReader) ReadAt(p []byte, off int64) (int, error) { return r.file.ReadAt(p, off) }

// ReadAhead is [DirectFile.ReadAhead].
func (r *DirectReader) ReadAhead(ctx context.Context, n int64) { r.file.ReadAhead(ctx, n) }

// Read implements [io.Reader].
func (r *DirectReader) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if b := r.ahead(); len(b) > 0 {
		n = copy(p, b)
		r.pos += int64(n)
		return n, nil
	}
	if len(p) >= DirectPiece {
		n, err = r.ReadAt(p, r.pos)
		r.pos += int64(n)
		if n > 0 && errors.Is(err, io.EOF) {
			err = nil
		}
		return n, err
	}
	if r.buf == nil {
		r.buf = LendBuffer()
	}
	// Up to a multiple of Align, so that what follows begins there.
	r.at = r.pos
	if r.n, err = r.file.ReadAt(r.buf[:DirectPiece-r.pos%DirectAlign], r.pos); r.n == 0 {
		return 0, err
	}
	n = copy(p, r.buf[:r.n])
	r.pos += int64(n)
	return n, nil
}

// ahead is what is read already and comes next.
func (r *DirectReader) ahead() []byte {
	if r.buf == nil || r.pos < r.at || r.pos >= r.at+int64(r.n) {
		return nil
	}
	return r.buf[r.pos-r.at : r.n]
}

// Seek implements [io.Seeker].
func (r *DirectReader) Seek(offset int64, whence int) (int64, error) {
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
func (r *DirectReader) Close() error {
	if r.buf != nil {
		ReturnBuffer(r.buf)
		r.buf, r.n = nil, 0
	}
	return r.file.Close()
}
