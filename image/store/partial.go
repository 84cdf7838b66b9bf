package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/direct"
)

// Partial is a download that outlives its process: what is there is kept for the next attempt.
type Partial struct {
	s    *Store
	d    ocispec.Descriptor
	f    *os.File
	file *direct.File // f, past the page cache
	path string

	cached bool // what comes goes through the page cache
	h      hash.Hash
	off    int64
	hashed int64 // how much of that h has
	defers bool  // see Defer
}

// Partial opens the download of a blob, alone: it waits for other processes with the same blob as long as ctx allows, and
// returns nil where the blob is in the store by then. An [Operation] must be open.
func (s *Store) Partial(ctx context.Context, d ocispec.Descriptor) (*Partial, error) {
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
		p := &Partial{s: s, d: d, f: f, file: direct.New(f), path: path}
		if err := p.rehash(ctx); err != nil {
			p.file.Close()
			return nil, fmt.Errorf("resume %s: %w", d.Digest, mapError(s.root, err))
		}
		return p, nil
	}
}

// rehash reads what an earlier attempt left. What is longer than the blob is not part of it.
func (p *Partial) rehash(ctx context.Context) error {
	p.h = sha256.New()
	err := p.hashFile(ctx)
	if err != nil {
		return err
	}
	p.off = p.hashed
	if p.off > p.d.Size {
		return p.Reset()
	}
	return nil
}

// hashFile hashes what the file has beyond what is hashed.
func (p *Partial) hashFile(ctx context.Context) error { return hashFile(ctx, p.file, p.h, &p.hashed) }

// hashFile hashes a file from *off to its end, and moves *off with it.
func hashFile(ctx context.Context, f *direct.File, h hash.Hash, off *int64) error {
	buf := direct.Lend()
	defer direct.Return(buf)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.ReadAt(buf, *off)
		h.Write(buf[:n])
		*off += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Defer has what is written from here on be hashed by Verify, which reads it back, until Reset: its reader verifies it as it comes, and nothing
// else takes cores from them.
func (p *Partial) Defer() { p.defers = true }

// ThroughCache has what is written from here on go through the page cache: it is read soon, and the kernel writes it to the disk when it likes, or Place does.
func (p *Partial) ThroughCache() { p.cached = true }

// Offset is how many bytes are there.
func (p *Partial) Offset() int64 { return p.off }

// Write appends, faster what is a [direct.Piece] from [direct.Lend] and comes to be at a multiple of its length. More than the blob may have is an error; after any other error the download can only be closed.
func (p *Partial) Write(b []byte) (int, error) {
	if p.off+int64(len(b)) > p.d.Size {
		return 0, &CorruptError{What: "blob " + p.d.Digest.String(), Err: fmt.Errorf("more than the %d bytes it should have", p.d.Size)}
	}
	n, err := p.write(b)
	p.off += int64(n)
	if err != nil {
		return n, fmt.Errorf("write blob %s: %w", p.d.Digest, mapError(p.s.root, err))
	}
	return n, nil
}

// write writes, and hashes side by side.
func (p *Partial) write(b []byte) (n int, err error) {
	write := func(b []byte) (int, error) { return p.file.WriteAt(b, p.off) }
	if p.cached {
		write = func(b []byte) (int, error) { return p.f.WriteAt(b, p.off) }
	}
	if p.defers {
		return write(b)
	}
	hashed := make(chan struct{})
	go func() {
		p.h.Write(b)
		close(hashed)
	}()
	n, err = write(b)
	<-hashed
	p.hashed += int64(n)
	return n, err
}

// Reset starts from nothing.
func (p *Partial) Reset() error {
	if err := p.f.Truncate(0); err != nil {
		return mapError(p.s.root, err)
	}
	p.h.Reset()
	p.off, p.hashed, p.defers = 0, 0, false
	return nil
}

// Verify returns an error unless the blob is there. Where it is another all of it is dropped and the error is a [*CorruptError].
func (p *Partial) Verify(ctx context.Context) error {
	if p.off != p.d.Size {
		return &CorruptError{What: "blob " + p.d.Digest.String(), Err: fmt.Errorf("%d of its %d bytes", p.off, p.d.Size)}
	}
	if p.hashed < p.off {
		if err := p.hashFile(ctx); err != nil {
			return fmt.Errorf("read blob %s: %w", p.d.Digest, mapError(p.s.root, err))
		}
	}
	if !p.right() {
		if err := p.Reset(); err != nil {
			return err
		}
		return &CorruptError{What: "blob " + p.d.Digest.String(), Err: errDigest}
	}
	return nil
}

// right reports whether what is hashed is the blob.
func (p *Partial) right() bool {
	return p.hashed == p.d.Size && p.off == p.d.Size && digest.NewDigest(digest.SHA256, p.h) == p.d.Digest
}

// Place makes what was verified a blob of the store, durably, which may wait for the disk.
func (p *Partial) Place(ctx context.Context) error {
	if !p.right() {
		return &CorruptError{What: "blob " + p.d.Digest.String(), Err: errDigest}
	}
	if p.cached {
		if err := flush(ctx, p.f, p.off); err != nil {
			return fmt.Errorf("write blob %s: %w", p.d.Digest, mapError(p.s.root, err))
		}
	}
	if err := p.s.place(ctx, p.f, p.d); err != nil {
		return err
	}
	return p.Drop() // still there where another process was first
}

// flushStep is how much is brought to the disk at a time, in bytes.
const flushStep = 32 << 20

// flush brings the first n bytes of a file to the disk, as long as ctx allows: an fsync could not be cancelled. It does not make them durable. Source:
// sync_file_range(2).
func flush(ctx context.Context, f *os.File, n int64) error {
	for off := int64(0); off < n; off += flushStep {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := unix.SyncFileRange(int(f.Fd()), off, flushStep, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil // the kernel writes when it likes
		}
		if err != nil {
			return os.NewSyscallError("sync_file_range", err)
		}
	}
	return nil
}

// Content opens what is there. It can be read also when it has become a blob of the store, and after Close.
func (p *Partial) Content() (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", p.f.Fd())) // by its name it may be in either place
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", p.d.Digest, mapError(p.s.root, err))
	}
	return f, nil
}

// Drop removes what is there.
func (p *Partial) Drop() error {
	if Still(p.f, p.path) {
		return os.Remove(p.path)
	}
	return nil
}

// Close lets others resume; an empty download leaves nothing.
func (p *Partial) Close() error {
	if p.off == 0 {
		if err := p.Drop(); err != nil {
			p.file.Close()
			return err
		}
	}
	return p.file.Close()
}

// DropPartial removes an interrupted download that no process works on.
func (s *Store) DropPartial(d ocispec.Descriptor) error {
	if err := checkDescriptor(d); err != nil {
		return &CorruptError{What: "descriptor", Err: err}
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
