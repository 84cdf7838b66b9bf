package direct

import "io"

var _ io.Writer = (*Writer)(nil)

// Writer writes a file from its begin to its end. What is written is summed up while the disk is at work. It is for one goroutine;
// after an error it is of no use any more.
type Writer struct {
	f    *File
	sum  io.Writer  // gets all bytes in their order; its errors do not count
	off  int64      // bytes that were handed to the file
	buf  []byte     // what is collected; nil: nothing
	n    int        // how much it is
	busy []byte     // what is on its way to the file, if it is a buffer
	done chan error // nil: nothing is on its way
	err  error
}

// NewWriter writes to f, which is empty, and tells sum, such as a hash, of all bytes.
func NewWriter(f *File, sum io.Writer) *Writer { return &Writer{f: f, sum: sum} }

// Write implements [io.Writer]. An error may be that of an earlier call.
func (w *Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		part := p
		if whole := down(len(p)); whole >= least && aligned(p) && w.n%Align == 0 {
			// From where it lies; what was collected goes before it.
			part = p[:whole]
			w.flush()
			w.begin(part)
			_, _ = w.sum.Write(part)
			w.wait()
		} else {
			part = w.collect(p)
			_, _ = w.sum.Write(part)
			if w.n == Piece {
				w.flush()
			}
		}
		n += len(part)
		p = p[len(part):]
	}
	return n, w.err
}

// collect keeps the first of p, and gives what it has kept.
func (w *Writer) collect(p []byte) []byte {
	if w.buf == nil {
		w.buf = Lend()
	}
	part := p[:copy(w.buf[w.n:Piece], p)]
	w.n += len(part)
	return part
}

// flush has what was collected written, without waiting for it.
func (w *Writer) flush() {
	if w.n == 0 {
		return
	}
	w.wait()
	b := w.buf
	if w.err == nil {
		w.begin(b[:w.n])
		w.busy = b
	} else {
		Return(b)
	}
	w.buf, w.n = nil, 0
}

// begin has b written after what is on its way.
func (w *Writer) begin(b []byte) {
	w.wait()
	if w.err != nil {
		return
	}
	off, done := w.off, make(chan error, 1)
	w.off, w.done = off+int64(len(b)), done
	go func() {
		_, err := w.f.WriteAt(b, off)
		done <- err
	}()
}

// wait waits for what is on its way.
func (w *Writer) wait() {
	if w.done == nil {
		return
	}
	if err := <-w.done; w.err == nil {
		w.err = err
	}
	w.done = nil
	if w.busy != nil {
		Return(w.busy)
		w.busy = nil
	}
}

// Flush waits until all is written. Nothing is durable by that.
func (w *Writer) Flush() error {
	w.flush()
	w.wait()
	return w.err
}

// Stop waits until nothing is on its way, and drops what was not written.
func (w *Writer) Stop() {
	w.wait()
	if w.buf != nil {
		Return(w.buf)
		w.buf, w.n = nil, 0
	}
}
