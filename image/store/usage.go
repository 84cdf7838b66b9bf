package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// Space is how many files there are of a kind, and how large they are.
type Space struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

func (s *Space) add(bytes int64) { s.Files, s.Bytes = s.Files+1, s.Bytes+bytes }

// SnapshotSpace is what one snapshot takes.
type SnapshotSpace struct {
	Tagged
	Bytes int64 // of all its blobs and signatures
	Own   int64 // of those that no other snapshot has
}

// Usage is what takes space under the root.
type Usage struct {
	Snapshots []SnapshotSpace `json:"-"`        // in the order of their names; names of one snapshot are one snapshot
	Blobs     Space           `json:"blobs"`    // of all snapshots; shared ones count once
	Unneeded  Space           `json:"unneeded"` // blobs that no snapshot has
	Unknown   Space           `json:"unknown"`  // blobs of which it is not known whether a snapshot needs them; they are kept
	Partial   Space           `json:"partial"`  // interrupted pulls
	Working   Space           `json:"working"`  // what running commands work on, and what killed ones have left
	// Unreadable are manifests that are damaged or gone. Until they are mended or removed, no blob is collected.
	Unreadable []Unreadable `json:"unreadable,omitempty"`
}

// Usage adds up what takes space. Others may work on the store meanwhile.
func (s *Store) Usage(ctx context.Context) (u Usage, err error) {
	i, err := s.readIndex(ctx)
	if err != nil {
		return u, err
	}
	tags, err := s.Tags(ctx)
	if err != nil {
		return u, err
	}
	sizes, err := s.sizes(s.blobs())
	if err != nil {
		return u, err
	}
	m, err := s.mark(ctx, i)
	if err != nil {
		return u, err
	}
	u.Unreadable = m.unreadable
	unknown := make(map[digest.Digest]bool)
	for _, d := range i.Manifests {
		unknown[d.Digest] = d.MediaType == mediaTypeUnknown
	}
	for name, bytes := range sizes {
		switch d := digest.NewDigestFromEncoded(digest.SHA256, name); {
		case unknown[d], !m.live[d] && len(m.unreadable) > 0:
			u.Unknown.add(bytes)
		case m.live[d]:
			u.Blobs.add(bytes)
		default:
			u.Unneeded.add(bytes)
		}
	}
	of := make(map[digest.Digest]map[digest.Digest]bool) // blobs by manifest
	users := make(map[digest.Digest]int)
	for _, t := range tags {
		if of[t.Descriptor.Digest] != nil {
			continue
		}
		one := ocispec.Index{Manifests: slices.DeleteFunc(slices.Clone(i.Manifests), func(d ocispec.Descriptor) bool { return !attached(d) && d.Digest != t.Descriptor.Digest })}
		m, err := s.mark(ctx, one)
		if err != nil {
			return u, err
		}
		of[t.Descriptor.Digest] = m.live
		for d := range m.live {
			users[d]++
		}
	}
	for _, t := range tags {
		n := SnapshotSpace{Tagged: t}
		for d := range of[t.Descriptor.Digest] {
			n.Bytes += sizes[d.Encoded()]
			if users[d] == 1 {
				n.Own += sizes[d.Encoded()]
			}
		}
		u.Snapshots = append(u.Snapshots, n)
	}
	if u.Partial, err = s.space(s.partial()); err != nil {
		return u, err
	}
	ingest, err := s.space(s.ingest())
	if err != nil {
		return u, err
	}
	u.Working, err = s.space(s.work())
	u.Working.Files, u.Working.Bytes = u.Working.Files+ingest.Files, u.Working.Bytes+ingest.Bytes
	return u, err
}

// sizes are those of the files in dir, by name.
func (s *Store) sizes(dir string) (map[string]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, mapError(s.root, err)
	}
	sizes := make(map[string]int64)
	for _, e := range entries {
		if i, err := e.Info(); err == nil && i.Mode().IsRegular() {
			sizes[e.Name()] = i.Size()
		}
	}
	return sizes, nil
}

// space adds up what is below dir, and not what is mounted there: it counts what is on the disk.
func (s *Store) space(dir string) (n Space, err error) {
	var root unix.Stat_t
	if err := unix.Lstat(dir, &root); err != nil {
		if errors.Is(err, fs.ErrNotExist) { // of a store that an earlier version made, on a read-only file system
			err = nil
		}
		return n, mapError(s.root, err)
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var at unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &at)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone meanwhile
		case err != nil:
			return mapError(s.root, err)
		case at.Dev != root.Dev && e.IsDir():
			return fs.SkipDir
		}
		if e.Type().IsRegular() {
			n.add(at.Blocks * 512)
		}
		return nil
	})
	return n, err
}

// Pruned is what [Store.Prune] has removed.
type Pruned struct {
	Unneeded Space `json:"unneeded"` // blobs that no snapshot has
	Partial  Space `json:"partial"`  // interrupted pulls
	Unknown  Space `json:"unknown"`  // what stays: blobs of which it is not known whether a snapshot needs them
	// Unreadable are manifests that are damaged or gone. No blob was removed for their sake.
	Unreadable []Unreadable `json:"unreadable,omitempty"`
	// Busy says that an operation runs. What is not needed goes with its end.
	Busy bool `json:"busy"`
}

// Prunable is what [Store.Prune] would remove. It needs no store that can be written.
func (s *Store) Prunable(ctx context.Context) (p Pruned, err error) {
	u, err := s.Usage(ctx)
	if err != nil {
		return p, err
	}
	p = Pruned{Unneeded: u.Unneeded, Partial: u.Partial, Unknown: u.Unknown, Unreadable: u.Unreadable}
	f, err := os.Open(s.opsLock())
	if errors.Is(err, fs.ErrNotExist) { // no operation has begun
		return p, nil
	}
	if err != nil {
		return p, mapError(s.root, err)
	}
	defer f.Close()
	alone, err := TryLock(f, unix.LOCK_EX)
	p.Busy = !alone
	return p, err
}

// Prune removes what is not needed: blobs that no snapshot has, interrupted pulls, and what killed commands have left. What running
// commands work on stays, and so do all blobs where the manifest of a snapshot cannot be read.
func (s *Store) Prune(ctx context.Context) (p Pruned, err error) {
	before, err := s.Usage(ctx)
	if err != nil {
		return p, err
	}
	op, err := s.Begin(ctx) // which removes what killed commands have left
	if err != nil {
		return p, err
	}
	if err := errors.Join(s.postpone(), mapError(s.root, sweepFiles(s.partial(), all)), op.Close()); err != nil {
		return p, err
	}
	c, err := s.collect(ctx) // the end of the operation may have met an error that it does not return
	if err != nil {
		return p, fmt.Errorf("remove what no snapshot needs: %w", err)
	}
	after, err := s.Usage(ctx)
	return Pruned{Unneeded: before.Unneeded.less(after.Unneeded), Partial: before.Partial.less(after.Partial), Unknown: after.Unknown, Unreadable: c.unreadable, Busy: c.busy}, err
}

func (s Space) less(t Space) Space {
	return Space{Files: max(0, s.Files-t.Files), Bytes: max(0, s.Bytes-t.Bytes)}
}

// CheckRoom returns an error unless blobs that are to be fetched, and so many bytes more, fit on the disk. If not the error is a [ErrDiskFull].
func (s *Store) CheckRoom(ctx context.Context, blobs []ocispec.Descriptor, more int64) error {
	need := more
	for _, d := range blobs {
		ok, err := s.Exists(ctx, d)
		if err != nil {
			return err
		}
		if ok {
			continue
		}
		need += d.Size
		var part unix.Stat_t
		if unix.Lstat(filepath.Join(s.partial(), d.Digest.Encoded()), &part) == nil {
			need -= min(part.Blocks*512, d.Size)
		}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(s.root, &disk); err != nil {
		return fmt.Errorf("look for free space under %s: %w", s.root, mapError(s.root, err))
	}
	if free := int64(disk.Bfree) * disk.Bsize; need > free { // root may use what is reserved
		return diskFull(s.root, fmt.Errorf("%d MiB more are needed, and %d MiB are free", (need+1<<20-1)>>20, free>>20))
	}
	return nil
}

// KeepPartial sets how long an interrupted pull is kept for its next attempt, instead of a week.
func (s *Store) KeepPartial(age time.Duration) { s.partialAge = age }
