package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/signature"
)

// Removed is what [Store.Remove] has done.
type Removed struct {
	Freed      int64        // bytes
	Unreadable []Unreadable // if there are any, no blob was removed
}

// Remove removes a reference and then every blob that no reference needs any more. While any operation runs only the reference goes (nothing is freed) and the blobs go
// with the end of the last operation.
func (s *Store) Remove(ctx context.Context, ref string) (r Removed, err error) {
	if err := s.Untag(ctx, ref); err != nil {
		return r, fmt.Errorf("remove %s: %w", ref, err)
	}
	// First, so that a collection is made up for also where this process ends here.
	if err := s.postpone(); err != nil {
		return r, fmt.Errorf("remove %s: %w", ref, err)
	}
	c, err := s.collect(ctx)
	if err != nil {
		err = fmt.Errorf("remove blobs of %s: %w", ref, err)
	}
	return Removed{Freed: c.freed, Unreadable: c.unreadable}, err
}

// postpone notes that there may be blobs to collect.
func (s *Store) postpone() error {
	f, err := os.OpenFile(s.pending(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return mapError(s.root, err)
	}
	return f.Close()
}

type collected struct {
	freed      int64 // bytes
	busy       bool  // an operation runs
	unreadable []Unreadable
}

// collect removes the blobs that no reference needs, unless an operation runs, or it is not known what a reference needs. Then the next operation tries again.
func (s *Store) collect(ctx context.Context) (c collected, err error) {
	ops, err := os.OpenFile(s.opsLock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return c, mapError(s.root, err)
	}
	defer ops.Close()
	if ok, err := TryLock(ops, unix.LOCK_EX); err != nil || !ok {
		c.busy = err == nil
		return c, err
	}
	err = s.withIndex(ctx, func(i ocispec.Index) error {
		m, err := s.mark(ctx, i)
		if err != nil {
			return err
		}
		if c.unreadable = m.unreadable; len(m.unreadable) > 0 {
			return nil
		}
		kept := slices.DeleteFunc(slices.Clone(i.Manifests), func(d ocispec.Descriptor) bool { return attached(d) && !m.live[d.Digest] })
		if len(kept) < len(i.Manifests) {
			i.Manifests = kept
			if err := s.writeIndex(i); err != nil { // before the blobs: it never names what is gone
				return err
			}
		}
		if c.freed, err = s.sweepBlobs(ctx, m.live); err != nil {
			return err
		}
		if err := os.Remove(s.pending()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return mapError(s.root, err)
		}
		return nil
	})
	return c, err
}

// Unreadable is a manifest that references need and that is damaged or gone. What it needs is unknown, so no blob is collected while there is one.
type Unreadable struct {
	Ref    string        `json:"reference,omitempty"` // empty if none is known
	Digest digest.Digest `json:"digest"`
	Reason string        `json:"error"`
}

func (u Unreadable) name() string {
	if u.Ref == "" {
		return u.Digest.String()
	}
	return u.Ref
}

// String returns what it is and what to do.
func (u Unreadable) String() string {
	return fmt.Sprintf("the manifest of %s cannot be read, and what it needs is kept: `cryo pull --repair %s` mends it, `cryo rm %s` gives it up (%v)", Familiar(u.name()), Familiar(u.name()),
		Familiar(u.name()), u.Reason)
}

// marked is what references need.
type marked struct {
	live       map[digest.Digest]bool
	unreadable []Unreadable
}

// mark finds all blobs that a reference needs, and the signatures of what it finds.
func (s *Store) mark(ctx context.Context, i ocispec.Index) (m marked, err error) {
	m.live = make(map[digest.Digest]bool)
	signatures := []ocispec.Descriptor{}
	for _, d := range i.Manifests {
		if attached(d) {
			signatures = append(signatures, d)
		} else if err := s.reach(ctx, d, &m); err != nil {
			return m, err
		}
	}
	for _, d := range signatures {
		data, err := ReadAll(ctx, s, d, signature.MaxSize)
		if errdefs.IsDataLoss(err) || errdefs.IsNotFound(err) {
			continue // it is good for nothing
		}
		if err == nil && m.live[signature.Subject(data)] {
			err = s.reach(ctx, d, &m)
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// reach adds what an entry of the index is of, and all that it needs.
func (s *Store) reach(ctx context.Context, entry ocispec.Descriptor, m *marked) error {
	needed, optional := []ocispec.Descriptor{entry}, []ocispec.Descriptor(nil)
	for len(needed)+len(optional) > 0 {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		var d ocispec.Descriptor
		isNeeded := len(needed) > 0
		if isNeeded {
			d, needed = needed[len(needed)-1], needed[:len(needed)-1]
		} else {
			d, optional = optional[len(optional)-1], optional[:len(optional)-1]
		}
		if m.live[d.Digest] {
			continue
		}
		if !IsManifest(d.MediaType) {
			m.live[d.Digest] = true
			continue
		}
		data, err := ReadAll(ctx, s, d, MaxManifest)
		if errors.Is(err, ErrMissing) && !isNeeded {
			continue
		}
		m.live[d.Digest] = true
		var more, other []ocispec.Descriptor
		if err == nil {
			if more, other, err = successors(d, data); err != nil {
				err = Corrupt("manifest "+d.Digest.String(), err)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			m.unreadable = append(m.unreadable, Unreadable{Ref: entry.Annotations[ocispec.AnnotationRefName], Digest: d.Digest, Reason: err.Error()})
			continue
		}
		needed, optional = append(needed, more...), append(optional, other...)
	}
	return nil
}

func (s *Store) sweepBlobs(ctx context.Context, live map[digest.Digest]bool) (freed int64, err error) {
	entries, err := os.ReadDir(s.blobs())
	if err != nil {
		return 0, mapError(s.root, err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return freed, context.Cause(ctx)
		}
		d := digest.NewDigestFromEncoded(digest.SHA256, e.Name())
		if checkDigest(d) != nil || live[d] {
			continue
		}
		i, err := e.Info()
		if err != nil || !i.Mode().IsRegular() {
			continue
		}
		if err := os.Remove(s.blobPath(d)); err != nil {
			return freed, mapError(s.root, err)
		}
		if err := s.trust(d); err != nil {
			return freed, err
		}
		freed += i.Size()
	}
	return freed, nil
}
