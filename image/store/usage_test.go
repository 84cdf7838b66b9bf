package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestTagCollects has a name move: what only its former snapshot needed goes with the end of the operation.
func TestTagCollects(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1, Segments: []uint64{1, 2, 3}})
	b := storetest.MustPut(t, s, "b", storetest.Spec{Seed: 2, Segments: []uint64{1, 2, 4}})
	op, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	before := storetest.Count(t, s)
	if err := s.Tag(ctx, b, "a"); err != nil {
		t.Fatal(err)
	}
	if n := storetest.Count(t, s); n != before {
		t.Errorf("%d blobs during the operation, want %d", n, before)
	}
	if err := op.Close(); err != nil {
		t.Fatal(err)
	}
	if n := storetest.Count(t, s); n != 7 {
		t.Errorf("%d blobs are left, want the 7 of b", n)
	}
	if err := storetest.Check(ctx, s); err != nil {
		t.Error(err)
	}
}

// TestUsage adds up what snapshots share and what they have alone, and what nobody needs.
func TestUsage(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	a := storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1, Segments: []uint64{1, 2, 3}})
	storetest.MustPut(t, s, "b", storetest.Spec{Seed: 2, Segments: []uint64{1, 2, 4}})
	if err := s.Tag(ctx, a, "a2"); err != nil {
		t.Fatal(err)
	}
	abandoned(t, s)
	u, err := s.Usage(ctx)
	if err != nil || len(u.Snapshots) != 3 {
		t.Fatalf("%+v, %v", u, err)
	}
	for _, n := range u.Snapshots {
		if shared := n.Bytes - n.Own; shared != 2*64<<10 {
			t.Errorf("%s: %d bytes, %d of its own, want two segments shared", n.Ref, n.Bytes, n.Own)
		}
	}
	if all := u.Snapshots[0].Bytes + u.Snapshots[2].Own; u.Blobs.Bytes != all || u.Unneeded.Files != 0 {
		t.Errorf("blobs: %+v, want %d bytes; not needed: %+v", u.Blobs, all, u.Unneeded)
	}
	if u.Partial.Files != 1 || u.Partial.Bytes < 1000 {
		t.Errorf("interrupted pulls: %+v", u.Partial)
	}
	if err := s.Untag(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if u, err = s.Usage(ctx); err != nil || u.Unneeded.Files != 5 || u.Blobs.Bytes != u.Snapshots[0].Bytes {
		t.Errorf("without b: %+v, %v", u, err)
	}
}

// abandoned leaves an interrupted pull in a store.
func abandoned(t *testing.T, s *store.Store) ocispec.Descriptor {
	t.Helper()
	data := storetest.Bytes(99, 5000)
	d := ocispec.Descriptor{MediaType: "x/y", Digest: digest.FromBytes(data), Size: int64(len(data))}
	op, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	p, err := s.Resume(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write(data[:1000]); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPrune says what it would remove, and removes that.
func TestPrune(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1, Segments: []uint64{1, 2, 3}})
	storetest.MustPut(t, s, "b", storetest.Spec{Seed: 2, Segments: []uint64{1, 2, 4}})
	if err := s.Untag(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	abandoned(t, s)
	would, err := s.Prunable(ctx)
	if err != nil || would.Busy || would.Unneeded.Files != 5 || would.Partial.Files != 1 {
		t.Errorf("would remove %+v, %v", would, err)
	}
	op, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	did, err := s.Prune(ctx)
	if err != nil || !did.Busy || did.Unneeded.Files != 0 || did.Partial != would.Partial {
		t.Errorf("during an operation: %+v, %v", did, err)
	}
	if err := op.Close(); err != nil {
		t.Fatal(err)
	}
	if n := storetest.Count(t, s); n != 7 {
		t.Errorf("%d blobs after the operation, want the 7 of a", n)
	}
	if did, err = s.Prune(ctx); err != nil || !reflect.DeepEqual(did, store.Pruned{}) {
		t.Errorf("the second time: %+v, %v", did, err)
	}
}

// TestIngestExpires keeps an interrupted pull for a week, or as long as it is told.
func TestIngestExpires(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		keep, age time.Duration
		stays     bool
	}{{0, 6 * day, true}, {0, 8 * day, false}, {30 * day, 29 * day, true}, {30 * day, 31 * day, false}} {
		s := storetest.Open(t)
		if c.keep > 0 {
			s.KeepPartial(c.keep)
		}
		path := filepath.Join(s.Root(), "partial", abandoned(t, s).Digest.Encoded())
		then := time.Now().Add(-c.age)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
		op, err := s.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		op.Close()
		if _, err := os.Stat(path); (err == nil) != c.stays {
			t.Errorf("kept for %s, of an age of %s: %v", c.keep, c.age, err)
		}
	}
}

// TestIngestIsBack has an interrupted pull's file there again though its blob is, as after a power failure.
func TestIngestIsBack(t *testing.T) {
	s := storetest.Open(t)
	name := abandoned(t, s).Digest.Encoded()
	part := filepath.Join(s.Root(), "partial", name)
	if err := os.WriteFile(filepath.Join(s.Layout(), "blobs", "sha256", name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	op, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	op.Close()
	if _, err := os.Stat(part); err == nil {
		t.Error("it stays")
	}
}

// TestCheckRoom counts what is here, in part too, as room that is not needed.
func TestCheckRoom(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	var many []ocispec.Descriptor
	for i := range 64 {
		many = append(many, ocispec.Descriptor{MediaType: "x/y", Digest: digest.FromString(fmt.Sprint(i)), Size: 1 << 39})
	}
	if err := s.CheckRoom(ctx, many, 0); !errors.Is(err, store.ErrDiskFull) {
		t.Errorf("blobs of 32 TiB: %v", err)
	}
	if err := s.CheckRoom(ctx, nil, 1<<60); !errors.Is(err, store.ErrDiskFull) {
		t.Errorf("32 TiB more: %v", err)
	}
	part := abandoned(t, s)
	if err := s.CheckRoom(ctx, []ocispec.Descriptor{part}, 0); err != nil {
		t.Error(err)
	}
}
