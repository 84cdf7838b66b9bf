package format

import "io"

var _ io.Writer = (*DirectWriter)(nil)

// DirectWriter appends to a file, and sums up each piece while the disk writes it. It is for one goroutine. After an error it cannot be used.
type DirectWriter struct {
	f   io.WriterAt
	sum io.Writer // receives all bytes in their order; its errors are ignored; nil: no sum
	off int64     // bytes that the file has
	buf []byte    // what is collected; nil: nothing was
	n   int       // how much it is
	err error
}

// NewDirectWriter returns a writer that writes to f, such as a [DirectFile], from off on. sum, such as a hash, receives the same bytes, unless it is nil.
func NewDirectWriter(f io.WriterAt, off int64, sum io.Writer) *DirectWriter {
	return &DirectWriter{f: f, off: off, sum: sum}
}

// Offset returns the offset of the next byte.
func (w *DirectWriter) Offset() int64 { return w.off + int64(w.n) }

// Write implements [io.Writer].
func (w *DirectWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		part := p
		if whole := down(len(p)); whole >= least && aligned(p) && w.n%DirectAlign == 0 {
			// From where it lies; what was collected goes before it.
			part = p[:whole]
			w.flush()
			w.put(part)
		} else {
			if w.buf == nil {
				w.buf = LendBuffer()
			}
			part = p[:copy(w.buf[w.n:DirectPiece], p)]
			if w.n += len(part); w.n == DirectPiece {
				w.flush()
			}
		}
		n += len(part)
		p = p[len(part):]
	}
	return n, w.err
}

// flush writes what was collected.
func (w *DirectWriter) flush() {
	if n := w.n; n > 0 {
		w.n = 0
		w.put(w.buf[:n])
	}
}

// put writes b, and sums it up meanwhile.
func (w *DirectWriter) put(b []byte) {
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
func (w *DirectWriter) Flush() error {
	w.flush()
	return w.err
}

// Stop drops what was not written.
func (w *DirectWriter) Stop() {
	if w.buf != nil {
		ReturnBuffer(w.buf)
		w.buf, w.n = nil, 0
	}
}
