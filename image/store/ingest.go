package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
)

// Ingest is a blob that is being written, by one goroutine. It can be read while it grows. [Ingest.Commit] makes it a blob of the store.
type Ingest struct {
	s    *Store
	d    ocispec.Descriptor // of the blob; without a digest until Commit if that is unknown
	kept bool               // the file outlives the process, for the next attempt
	f    *os.File           // nil: closed
	file *format.DirectFile // f, past the page cache
	w    *format.DirectWriter
	sum  sum

	cached bool // see ThroughCache
	defers bool // see Defer
}

var _ image.BlobWriter = (*Ingest)(nil)

// Create implements [image.BlobStore]: it starts a blob of unknown digest and size.
func (s *Store) Create(context.Context) (image.BlobWriter, error) {
	return s.create1(ocispec.Descriptor{Size: MaxBlob})
}

func (s *Store) create1(d ocispec.Descriptor) (*Ingest, error) {
	f, err := createTemp(s.ingest(), "blob-")
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", mapError(s.root, err))
	}
	i := &Ingest{s: s, d: d, f: f, file: format.NewDirectFile(f), sum: newSum()}
	i.from(0)
	return i, nil
}

// Resume opens the download of a blob, and keeps the bytes of an earlier attempt of any process. It waits for other processes that download the same blob as long as ctx allows, and
// returns nil if the blob is in the store by then. An [Operation] must be open.
func (s *Store) Resume(ctx context.Context, d ocispec.Descriptor) (*Ingest, error) {
	path := filepath.Join(s.partial(), d.Digest.Encoded())
	for {
		if ok, err := s.Exists(ctx, d); err != nil || ok {
			return nil, err
		}
		f, err := lockFile(ctx, path, unix.LOCK_EX)
		if err != nil {
			return nil, fmt.Errorf("resume %s: %w", d.Digest, mapError(s.root, err))
		}
		if !Still(f, path) {
			f.Close()
			continue
		}
		if ok, err := s.Exists(ctx, d); err != nil || ok {
			os.Remove(path)
			f.Close()
			return nil, err
		}
		i := &Ingest{s: s, d: d, kept: true, f: f, file: format.NewDirectFile(f), sum: newSum()}
		if err := i.resume(ctx); err != nil {
			i.file.Close()
			return nil, fmt.Errorf("resume %s: %w", d.Digest, mapError(s.root, err))
		}
		return i, nil
	}
}

// resume hashes the bytes of an earlier attempt. More bytes than the blob has are dropped.
func (i *Ingest) resume(ctx context.Context) error {
	if err := i.sum.add(ctx, i.file); err != nil {
		return err
	}
	i.from(i.sum.n)
	if i.sum.n > i.d.Size {
		return i.Reset()
	}
	return nil
}

// from begins to write at an offset.
func (i *Ingest) from(off int64) {
	switch {
	case i.cached && i.defers:
		i.w = format.NewDirectWriter(i.f, off, nil)
	case i.cached:
		i.w = format.NewDirectWriter(i.f, off, &i.sum)
	case i.defers:
		i.w = format.NewDirectWriter(i.file, off, nil)
	default:
		i.w = format.NewDirectWriter(i.file, off, &i.sum)
	}
}

// Defer leaves the hashing of later writes to Verify, which reads them back, until Reset. A reader that verifies what it reads then has the cores for itself.
func (i *Ingest) Defer() {
	i.defers = true
	i.from(i.Offset())
}

// ThroughCache writes through the page cache from now on, for bytes that are read soon. The kernel writes them to the disk later, or Commit does.
func (i *Ingest) ThroughCache() {
	i.cached = true
	i.from(i.Offset())
}

// Offset returns how many bytes were written.
func (i *Ingest) Offset() int64 { return i.w.Offset() }

// Write implements [io.Writer]. A [format.DirectPiece] from [format.LendBuffer] at a multiple of its length is written with O_DIRECT. Bytes of a download can be read at once. More bytes than the
// blob has are a [ErrCorrupt]; after any other error the blob can only be closed.
func (i *Ingest) Write(p []byte) (int, error) {
	if i.f == nil {
		return 0, fs.ErrClosed
	}
	if i.Offset()+int64(len(p)) > i.d.Size {
		return 0, i.corrupt(fmt.Errorf("more than the %d bytes it should have", i.d.Size))
	}
	n, err := i.w.Write(p)
	if err == nil && i.kept {
		err = i.flush()
	}
	if err != nil {
		return n, fmt.Errorf("write blob: %w", mapError(i.s.root, err))
	}
	return n, nil
}

// flush writes collected bytes and returns their buffer: many blobs may wait for Commit.
func (i *Ingest) flush() error {
	defer i.w.Stop()
	return i.w.Flush()
}

// Reset starts from nothing.
func (i *Ingest) Reset() error {
	i.w.Stop()
	if err := i.f.Truncate(0); err != nil {
		return mapError(i.s.root, err)
	}
	i.sum, i.defers = newSum(), false
	i.from(0)
	return nil
}

// Verify returns an error unless the blob is complete and has its digest. If it has another, all bytes are dropped. The error is a [ErrCorrupt].
func (i *Ingest) Verify(ctx context.Context) error {
	if err := i.flush(); err != nil {
		return fmt.Errorf("write blob %s: %w", i.d.Digest, mapError(i.s.root, err))
	}
	if i.Offset() != i.d.Size {
		return i.corrupt(fmt.Errorf("%d of its %d bytes", i.Offset(), i.d.Size))
	}
	if i.sum.n < i.Offset() {
		if err := i.sum.add(ctx, i.file); err != nil {
			return fmt.Errorf("read blob %s: %w", i.d.Digest, mapError(i.s.root, err))
		}
	}
	if !i.sum.of(i.d) {
		if err := i.Reset(); err != nil {
			return err
		}
		return i.corrupt(errDigest)
	}
	return nil
}

// Commit implements [image.BlobWriter]: it moves the blob into the store and closes it. It may wait for the disk. The blob is durable when a name needs it. A blob of known digest must
// have been verified, or the error is a [ErrCorrupt] and the blob stays open; mediaType is ignored for it.
func (i *Ingest) Commit(ctx context.Context, mediaType string) (ocispec.Descriptor, error) {
	if i.f == nil {
		return ocispec.Descriptor{}, fs.ErrClosed
	}
	if err := i.flush(); err != nil {
		i.Close()
		return ocispec.Descriptor{}, fmt.Errorf("write blob: %w", mapError(i.s.root, err))
	}
	if i.d.Digest == "" {
		i.d = i.sum.descriptor(mediaType)
	}
	if !i.sum.of(i.d) {
		return ocispec.Descriptor{}, i.corrupt(errDigest)
	}
	defer i.Close()
	if i.cached {
		if err := writeOut(ctx, i.f, i.d.Size); err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("write blob %s: %w", i.d.Digest, mapError(i.s.root, err))
		}
	}
	if err := i.s.place(ctx, i.f, i.d); err != nil {
		return ocispec.Descriptor{}, err
	}
	return i.d, i.Drop() // still there where another process was first
}

// Content opens the file for reading. It can be read after Commit and Close, too.
func (i *Ingest) Content() (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", i.f.Fd())) // by its name it may be in either place
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", i.d.Digest, mapError(i.s.root, err))
	}
	return f, nil
}

// Drop removes the file.
func (i *Ingest) Drop() error {
	if Still(i.f, i.f.Name()) {
		return os.Remove(i.f.Name())
	}
	return nil
}

// Close removes the file of a blob that was not committed, unless it is a download with bytes, which another attempt resumes.
func (i *Ingest) Close() (err error) {
	if i.f == nil {
		return nil
	}
	if !i.kept || i.Offset() == 0 {
		err = i.Drop()
	}
	i.w.Stop()
	i.f = nil
	return errors.Join(err, i.file.Close())
}

func (i *Ingest) corrupt(err error) error {
	return Corrupt("blob "+i.d.Digest.String(), err)
}

// place moves the complete, verified file f to the blobs as d. If the store has d, f stays where it is.
func (s *Store) place(ctx context.Context, f *os.File, d ocispec.Descriptor) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	ok, err := s.Exists(ctx, d)
	if err != nil || ok {
		return err // the directory is synced before a name needs the blob
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync blob %s: %w", d.Digest, mapError(s.root, err))
	}
	if err := os.Rename(f.Name(), s.blobPath(d.Digest)); err != nil {
		return fmt.Errorf("store blob %s: %w", d.Digest, mapError(s.root, err))
	}
	return s.trust(d.Digest)
}

// writeStep is how much is written to the disk at a time, bytes.
const writeStep = 32 << 20

// writeOut writes the first n bytes of a file to the disk, as long as ctx allows: an fsync could not be cancelled. It does not make them durable. Source:
// sync_file_range(2).
func writeOut(ctx context.Context, f *os.File, n int64) error {
	for off := int64(0); off < n; off += writeStep {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := unix.SyncFileRange(int(f.Fd()), off, writeStep, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil // the kernel writes when it likes
		}
		if err != nil {
			return os.NewSyscallError("sync_file_range", err)
		}
	}
	return nil
}

// DropPartial removes an interrupted download that no process works on.
func (s *Store) DropPartial(d ocispec.Descriptor) error {
	if err := checkDescriptor(d); err != nil {
		return Corrupt("descriptor", err)
	}
	path := filepath.Join(s.partial(), d.Digest.Encoded())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return mapError(s.root, err)
	}
	defer f.Close()
	if ok, err := TryLock(f, unix.LOCK_EX); err != nil || !ok || !Still(f, path) {
		return err
	}
	return os.Remove(path)
}
