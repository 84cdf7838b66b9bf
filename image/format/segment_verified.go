package format

import (
	"context"
)

// Verified is a blob of a store on this host, of which the store says: its digest was right when it came in, and only root could write
// it since. Frames out of it need not be hashed again. Only package image/store may make one ([NewVerified]); a test in package
// integration/direction sees to that.
type Verified struct{ r *DirectReader }

// NewVerified takes over r, whose bytes had the digest of their blob, and which only root can have written since.
func NewVerified(r *DirectReader) Verified { return Verified{r} }

// Read implements [io.Reader].
func (v Verified) Read(p []byte) (int, error) { return v.r.Read(p) }

// ReadAt implements [io.ReaderAt].
func (v Verified) ReadAt(p []byte, off int64) (int, error) { return v.r.ReadAt(p, off) }

// ReadAhead is [DirectFile.ReadAhead].
func (v Verified) ReadAhead(ctx context.Context, n int64) { v.r.ReadAhead(ctx, n) }

// Seek implements [io.Seeker].
func (v Verified) Seek(offset int64, whence int) (int64, error) { return v.r.Seek(offset, whence) }

// Close implements [io.Closer].
func (v Verified) Close() error { return v.r.Close() }

// StoredFrame are the stored bytes of a frame, out of a [Verified].
type StoredFrame struct{ b []byte }

// Frame reads the stored bytes of a frame into buf, of [MaxFrame] bytes. It returns [io.EOF] for a blob that is too short.
func (v Verified) Frame(f *Frame, buf []byte) (StoredFrame, error) {
	if n, err := v.r.ReadAt(buf[:f.Stored], f.Offset); int64(n) < f.Stored {
		return StoredFrame{}, err
	}
	return StoredFrame{buf[:f.Stored]}, nil
}
