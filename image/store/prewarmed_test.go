package store_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// prewarmed makes snapshots and records that they are prewarmed, each of 100 bytes and used a minute after the one before.
func prewarmed(t *testing.T, s *store.Store, fetched bool, refs ...string) (digests []digest.Digest) {
	t.Helper()
	for n, ref := range refs {
		d := storetest.MustPut(t, s, ref, storetest.Spec{Seed: uint64(len(ref)) + uint64(ref[0]), Segments: []uint64{uint64(ref[0])}})
		keep(t, s, store.Prewarmed{Reference: full(t, ref), Digest: d.Digest, Size: 100, Fetched: fetched}, 0)
		used := time.Now().Add(time.Duration(n-len(refs)) * time.Minute)
		if err := os.Chtimes(filepath.Join(s.Root(), "prewarmed", d.Digest.Encoded()), used, used); err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d.Digest)
	}
	return digests
}

func full(t *testing.T, ref string) string {
	t.Helper()
	name, err := store.Normalize(ref)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// keep records a snapshot, as a command does: within an operation.
func keep(t *testing.T, s *store.Store, p store.Prewarmed, budget int64) []store.Prewarmed {
	t.Helper()
	op, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	_, removed, err := s.KeepPrewarmed(t.Context(), p, budget)
	if err != nil {
		t.Fatal(err)
	}
	return removed
}

// wantPrewarmed wants these to be prewarmed, the least recently used first, and no other file to be there.
func wantPrewarmed(t *testing.T, s *store.Store, refs ...string) (all []store.Prewarmed) {
	t.Helper()
	all, err := s.Prewarmed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, p := range all {
		got = append(got, p.Reference)
	}
	for _, ref := range refs {
		want = append(want, full(t, ref))
	}
	entries, err := os.ReadDir(filepath.Join(s.Root(), "prewarmed"))
	if !slices.Equal(got, want) || err != nil || len(entries) != len(refs) {
		t.Errorf("%s are prewarmed, want %s; files %v, %v", got, want, entries, err)
	}
	return all
}

func TestPrewarmed(t *testing.T) {
	s := storetest.Open(t)
	wantPrewarmed(t, s)
	d := prewarmed(t, s, true, "a", "b")
	wantPrewarmed(t, s, "a", "b")
	s.UsePrewarmed(d[0])
	wantPrewarmed(t, s, "b", "a")
	s.UsePrewarmed(digest.FromString("another"))
	keep(t, s, store.Prewarmed{Reference: full(t, "b"), Digest: d[1], Size: 100}, 0)
	if all := wantPrewarmed(t, s, "a", "b"); !all[1].Fetched || all[1].Size != 100 {
		t.Errorf("prewarmed again: %+v", all[1])
	}
	if err := s.RemovePrewarmed(t.Context(), d[0]); err != nil {
		t.Fatal(err)
	}
	wantPrewarmed(t, s, "b")
	if _, err := s.Resolve(t.Context(), "a"); !errdefs.IsNotFound(err) {
		t.Errorf("what was fetched is there: %v", err)
	}
	if err := s.RemovePrewarmed(t.Context(), d[0]); err != nil {
		t.Errorf("removed again: %v", err)
	}
	if err := s.RemovePrewarmed(t.Context(), d[1]); err != nil {
		t.Fatal(err)
	}
	if n := storetest.Count(t, s); n != 0 {
		t.Errorf("%d blobs are left", n)
	}
}

// TestPrewarmedBudget: what was fetched makes room, the least recently used first; what was there before stays.
func TestPrewarmedBudget(t *testing.T) {
	s := storetest.Open(t)
	prewarmed(t, s, false, "own")
	prewarmed(t, s, true, "a", "b", "c")
	d := storetest.MustPut(t, s, "d", storetest.Spec{Seed: 9})
	removed := keep(t, s, store.Prewarmed{Reference: full(t, "d"), Digest: d.Digest, Size: 100, Fetched: true}, 250)
	if len(removed) != 2 {
		t.Errorf("removed %+v", removed)
	}
	wantPrewarmed(t, s, "own", "c", "d")
	for ref, there := range map[string]bool{"own": true, "a": false, "b": false, "c": true, "d": true} {
		if _, err := s.Resolve(t.Context(), ref); err == nil != there {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if err := storetest.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
	// It stays even if it is larger than the budget.
	if removed := keep(t, s, store.Prewarmed{Reference: full(t, "d"), Digest: d.Digest, Size: 100}, 50); len(removed) != 1 {
		t.Errorf("removed %+v", removed)
	}
	wantPrewarmed(t, s, "own", "d")
}

// TestPrewarmedStale: a record counts no more where the store has no snapshot by its name, or another one, or where it cannot be read.
func TestPrewarmedStale(t *testing.T) {
	s := storetest.Open(t)
	prewarmed(t, s, true, "gone", "moved", "other", "stays")
	if _, err := s.Remove(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	storetest.MustPut(t, s, "moved", storetest.Spec{Seed: 77})
	for _, p := range wantPrewarmed(t, s, "other", "stays") {
		if p.Reference == full(t, "other") {
			if err := os.WriteFile(filepath.Join(s.Root(), "prewarmed", p.Digest.Encoded()), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(s.Root(), "prewarmed", ".left-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantPrewarmed(t, s, "stays")
}
