package direct

import "io"

var _ io.Writer = (*Writer)(nil)

// Writer appends to a file, and sums up each piece while the disk writes it. It is for one goroutine. After an error it cannot be used.
type Writer struct {
	f   io.WriterAt
	sum io.Writer // receives all bytes in their order; its errors are ignored; nil: no sum
	off int64     // bytes that the file has
	buf []byte    // what is collected; nil: nothing was
	n   int       // how much it is
	err error
}

// NewWriter returns a writer that writes to f, such as a [File], from off on. sum, such as a hash, receives the same bytes, unless it is nil.
func NewWriter(f io.WriterAt, off int64, sum io.Writer) *Writer {
	return &Writer{f: f, off: off, sum: sum}
}

// Offset returns the offset of the next byte.
func (w *Writer) Offset() int64 { return w.off + int64(w.n) }

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		part := p
		if whole := down(len(p)); whole >= least && aligned(p) && w.n%Align == 0 {
			// From where it lies; what was collected goes before it.
			part = p[:whole]
			w.flush()
			w.put(part)
		} else {
			if w.buf == nil {
				w.buf = Lend()
			}
			part = p[:copy(w.buf[w.n:Piece], p)]
			if w.n += len(part); w.n == Piece {
				w.flush()
			}
		}
		n += len(part)
		p = p[len(part):]
	}
	return n, w.err
}

// flush writes what was collected.
func (w *Writer) flush() {
	if n := w.n; n > 0 {
		w.n = 0
		w.put(w.buf[:n])
	}
}

// put writes b, and sums it up meanwhile.
func (w *Writer) put(b []byte) {
	if w.err != nil {
		return
	}
	written := make(chan error, 1)
	go func() {
		_, err := w.f.WriteAt(b, w.off)
		written <- err
	}()
	if w.sum != nil {
		_, _ = w.sum.Write(b)
	}
	w.err = <-written
	w.off += int64(len(b))
}

// Flush writes all that was not written yet. Nothing is durable by that.
func (w *Writer) Flush() error {
	w.flush()
	return w.err
}

// Stop drops what was not written.
func (w *Writer) Stop() {
	if w.buf != nil {
		Return(w.buf)
		w.buf, w.n = nil, 0
	}
}
