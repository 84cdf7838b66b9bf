package store

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// Prewarmed is the record of a snapshot that is prewarmed. It counts while its name is that of the snapshot in the store.
type Prewarmed struct {
	Reference string        `json:"reference"` // by which it was prewarmed last, normalised
	Digest    digest.Digest `json:"digest"`    // of its manifest
	Size      int64         `json:"size"`      // of all its blobs, in bytes
	Fetched   bool          `json:"fetched"`   // for this; the name goes with the record
	Created   time.Time     `json:"created"`
	Used      time.Time     `json:"-"` // by cryo prewarm or a restore, last; the file's time of modification
}

func (s *Store) prewarmedPath(d digest.Digest) string {
	return filepath.Join(s.prewarmed(), d.Encoded())
}

// Prewarmed lists what is prewarmed, the least recently used first. Records that do not count any more are removed.
func (s *Store) Prewarmed(ctx context.Context) (all []Prewarmed, err error) {
	err = s.changePrewarmed(ctx, func(found []Prewarmed) ([]Prewarmed, error) {
		all = found
		return nil, nil
	})
	return all, err
}

// KeepPrewarmed records that a snapshot is prewarmed, and gives the record. One that there is by the same name stays, but for its last use. What was fetched for others
// makes room, the least recently used first, until all that was fetched takes no more than so many bytes; 0: nothing makes room. It gives what was removed, too. The
// caller has an [Operation], with whose end the blobs go.
func (s *Store) KeepPrewarmed(ctx context.Context, p Prewarmed, budget int64) (kept Prewarmed, removed []Prewarmed, err error) {
	err = s.changePrewarmed(ctx, func(all []Prewarmed) ([]Prewarmed, error) {
		p.Used = time.Now()
		p.Created = p.Used
		var sum int64
		for _, o := range all {
			switch {
			case o.Digest == p.Digest:
				p.Created = o.Created
				if o.Reference == p.Reference {
					p.Fetched = o.Fetched
				}
			case o.Fetched:
				sum += o.Size
			}
		}
		if p.Fetched {
			sum += p.Size
		}
		for _, o := range all {
			if budget > 0 && sum > budget && o.Fetched && o.Digest != p.Digest {
				removed, sum = append(removed, o), sum-o.Size
			}
		}
		data, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		err = ReplaceFile(s.prewarmedPath(p.Digest), Bytes(data))
		s.UsePrewarmed(p.Digest) // whose clock is finer than that of files
		return removed, err
	})
	return p, removed, err
}

// UsePrewarmed says that a snapshot is being restored, if it is prewarmed. That counts as use; where it cannot be recorded, another one makes room.
func (s *Store) UsePrewarmed(d digest.Digest) {
	now := time.Now()
	_ = os.Chtimes(s.prewarmedPath(d), now, now)
}

// RemovePrewarmed removes the record of a snapshot, if there is one, and what was fetched for it.
func (s *Store) RemovePrewarmed(ctx context.Context, d digest.Digest) error {
	err := s.changePrewarmed(ctx, func(all []Prewarmed) ([]Prewarmed, error) {
		return slices.DeleteFunc(all, func(p Prewarmed) bool { return p.Digest != d }), nil
	})
	if err == nil && exists(s.pending()) {
		_, err = s.collect(ctx)
	}
	return err
}

// changePrewarmed calls change with what is prewarmed, and removes what that returns. No other process changes records or names meanwhile.
func (s *Store) changePrewarmed(ctx context.Context, change func(all []Prewarmed) (gone []Prewarmed, err error)) error {
	return s.withIndex(ctx, func(i ocispec.Index) error {
		all, err := s.readPrewarmed(i)
		if err != nil {
			return fmt.Errorf("list prewarmed snapshots: %w", mapError(s.root, err))
		}
		gone, err := change(all)
		if err != nil {
			return fmt.Errorf("record a prewarmed snapshot: %w", mapError(s.root, err))
		}
		kept := slices.DeleteFunc(slices.Clone(i.Manifests), func(d ocispec.Descriptor) bool {
			return slices.ContainsFunc(gone, func(p Prewarmed) bool {
				return p.Fetched && p.Digest == d.Digest && p.Reference == d.Annotations[ocispec.AnnotationRefName]
			})
		})
		if len(kept) < len(i.Manifests) {
			if err := s.postpone(); err != nil {
				return err
			}
			i.Manifests = kept
			if err := s.writeIndex(i); err != nil { // before the records: one without its snapshot does not count
				return err
			}
		}
		for _, p := range gone {
			if err := os.Remove(s.prewarmedPath(p.Digest)); err != nil {
				return fmt.Errorf("remove the record of a prewarmed snapshot: %w", mapError(s.root, err))
			}
		}
		return nil
	})
}

// readPrewarmed reads the records that count, and removes all other files. The index lock is held.
func (s *Store) readPrewarmed(i ocispec.Index) (all []Prewarmed, err error) {
	entries, err := os.ReadDir(s.prewarmed())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(s.prewarmed(), e.Name())
		var p Prewarmed
		data, err := os.ReadFile(path)
		if err == nil {
			err = format.SmallJSON.Unmarshal(data, &p)
		}
		info, statErr := e.Info()
		if err != nil || statErr != nil || !slices.ContainsFunc(i.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == p.Digest && matches(d, p.Reference) }) {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		p.Used = info.ModTime()
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b Prewarmed) int { return a.Used.Compare(b.Used) })
	return all, nil
}
