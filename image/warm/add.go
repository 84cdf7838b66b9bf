package warm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// AddOptions are the choices of [Dir.Add].
type AddOptions struct {
	Reference string // by which the snapshot is known
	Disk      int64  // [Size].Disk
	Budget    Size
	// Progress is told what was read and verified, as "verify", in bytes of blobs.
	Progress image.Progress
}

// Add prewarms a snapshot whose blobs src has: all is verified first. It gives what was removed to make room, see [Dir.Room]. One that
// is prewarmed already is only used anew. If it fails, or ctx ends, nothing of it is left.
func (d *Dir) Add(ctx context.Context, src image.Fetcher, s *image.Snapshot, o AddOptions) (info Info, removed []Info, err error) {
	lock, err := d.lock(ctx)
	if err != nil {
		return info, nil, err
	}
	defer lock.Close()
	if err := d.mount(); err != nil {
		return info, nil, err
	}
	defer func() {
		if uerr := d.unmount(); err == nil {
			err = uerr
		}
	}()
	if err := d.sweep(); err != nil {
		return info, nil, err
	}
	if info, err = d.again(ctx, s, o); err != nil || info.Digest != "" {
		return info, nil, err
	}
	info = Info{Reference: o.Reference, Digest: s.Descriptor.Digest, Size: Size{Memory: Need(s), Disk: o.Disk}, Created: time.Now()}
	if removed, err = d.room(info.Size, o.Budget); err != nil {
		return info, removed, err
	}
	dir, err := os.MkdirTemp(d.path, unfinished)
	if err != nil {
		return info, removed, fmt.Errorf("prewarm: %w", err)
	}
	if err = fill(ctx, src, s, dir, info, o.Progress); err == nil {
		err = os.Rename(dir, d.entry(info.Digest))
	}
	if err != nil {
		return info, removed, errors.Join(err, os.RemoveAll(dir))
	}
	info.Used = info.Created
	return info, removed, nil
}

// again gives an entry that is there already, known by the new reference from now on.
func (d *Dir) again(ctx context.Context, s *image.Snapshot, o AddOptions) (info Info, err error) {
	e, err := d.Find(ctx, s.Descriptor.Digest)
	if err != nil || e == nil {
		return info, err
	}
	defer e.Close()
	if info, err = readInfo(e.path); err != nil {
		return info, fmt.Errorf("prewarm: %w", err)
	}
	if o.Reference == info.Reference {
		return info, nil
	}
	// Who has it under another name as well has reason to keep its blobs.
	info.Reference, info.Disk = o.Reference, o.Disk
	if err := writeInfo(e.path, info); err != nil {
		return info, fmt.Errorf("prewarm: %w", err)
	}
	return info, nil
}

// fill makes a whole entry in dir.
func fill(ctx context.Context, src image.Fetcher, s *image.Snapshot, dir string, info Info, p image.Progress) error {
	memory, err := os.OpenFile(filepath.Join(dir, memoryName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("prewarm: %w", err)
	}
	err = image.Decode(ctx, src, s.Descriptor, memory, p)
	if cerr := memory.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("prewarm: %w", err)
	}
	if err := os.Mkdir(filepath.Join(dir, blobsName), 0o700); err != nil {
		return fmt.Errorf("prewarm: %w", err)
	}
	for _, d := range blobs(s) {
		if err := keep(ctx, src, d, filepath.Join(dir, blobsName, d.Digest.Encoded())); err != nil {
			return fmt.Errorf("prewarm: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = lock.Close()
	}
	if err == nil {
		err = writeInfo(dir, info)
	}
	if err != nil {
		return fmt.Errorf("prewarm: %w", err)
	}
	return ctx.Err()
}

// blobs are those of a snapshot that are kept as they are: all but the segments.
func blobs(s *image.Snapshot) []ocispec.Descriptor {
	all := []ocispec.Descriptor{s.Descriptor, s.Manifest.Config, s.Index(), s.CRIU()}
	if d, ok := s.RootFS(); ok {
		all = append(all, d)
	}
	return all
}

// keep copies a blob, and verifies the copy.
func keep(ctx context.Context, src image.Fetcher, d ocispec.Descriptor, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil // two layers may be one blob
	} else if err != nil {
		return err
	}
	return errors.Join(store.Copy(ctx, f, src, d), f.Close())
}
