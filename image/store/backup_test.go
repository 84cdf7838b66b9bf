package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestIndexBackup: a damaged index.json costs no name and no blob, and the next write mends it.
func TestIndexBackup(t *testing.T) {
	for name, harm := range map[string]func(string) error{
		"gone":     os.Remove,
		"empty":    func(path string) error { return os.Truncate(path, 0) },
		"cut":      func(path string) error { return os.Truncate(path, 40) },
		"too long": func(path string) error { return os.Truncate(path, 65<<20) },
		"garbage":  func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("x", 300)), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := storetest.Open(t), t.Context()
			a := storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
			b := storetest.MustPut(t, s, "b:1", storetest.Spec{Seed: 2, Segments: []uint64{2}})
			index := filepath.Join(s.Layout(), "index.json")
			if err := harm(index); err != nil {
				t.Fatal(err)
			}
			n := storetest.Count(t, s)
			again, err := store.Open(s.Root())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := again.Prune(ctx); err != nil || storetest.Count(t, s) != n {
				t.Errorf("prune: %v, %d blobs of %d", err, storetest.Count(t, s), n)
			}
			if got, err := again.Resolve(ctx, "a:1"); err != nil || got.Digest != a.Digest {
				t.Errorf("a:1 is %v, %v", got.Digest, err)
			}
			if _, err := again.Remove(ctx, "a:1"); err != nil {
				t.Error(err)
			}
			data, err := os.ReadFile(index)
			if err != nil {
				t.Fatal(err)
			}
			if i, err := store.ParseIndex(data); err != nil || len(i.Manifests) != 1 || i.Manifests[0].Digest != b.Digest {
				t.Errorf("the index is %s, %v", data, err)
			}
			if err := storetest.Check(ctx, again); err != nil {
				t.Error(err)
			}
		})
	}
}

// damageIndexes damages index.json and its backup.
func damageIndexes(t *testing.T, s *store.Store) {
	t.Helper()
	for _, path := range []string{filepath.Join(s.Layout(), "index.json"), filepath.Join(s.Root(), "index.backup.json")} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIndexRebuilt damages the index and its backup. The store makes an index from its blobs. Snapshots get names that say that their names are lost. No blob is collected: a damaged or
// missing manifest may need any of them.
func TestIndexRebuilt(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	a := storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	b := storetest.MustPut(t, s, "b:1", storetest.Spec{Seed: 2, Segments: []uint64{2}})
	gone := storetest.MustPut(t, s, "c:1", storetest.Spec{Seed: 3, Segments: []uint64{3}})
	blob := func(d ocispec.Descriptor) string {
		return filepath.Join(s.Layout(), "blobs", "sha256", d.Digest.Encoded())
	}
	if err := errors.Join(os.Truncate(blob(b), 20), os.Remove(blob(gone))); err != nil {
		t.Fatal(err)
	}
	damageIndexes(t, s)
	n := storetest.Count(t, s)
	// Reading changes nothing.
	if _, err := s.Resolve(ctx, "a:1"); !errors.Is(err, store.ErrUnknownRef) || !strings.Contains(failure.Hint(err), store.LostName) {
		t.Errorf("the old name: %v", err)
	}
	name := store.LostName + ":" + a.Digest.Encoded()[:12]
	tags, err := s.Tags(ctx)
	if err != nil || len(tags) != 1 || tags[0].Ref != name || tags[0].Descriptor.Digest != a.Digest {
		t.Errorf("tags %v, %v", tags, err)
	}
	if data, err := os.ReadFile(filepath.Join(s.Layout(), "index.json")); err != nil || string(data) != "x" {
		t.Errorf("reading has changed the index: %s, %v", data, err)
	}
	if p, err := s.Prune(ctx); err != nil || storetest.Count(t, s) != n || len(p.Unreadable) != 1 || p.Unreadable[0].Digest != b.Digest {
		t.Errorf("pruned %+v, %v, %d blobs of %d", p, err, storetest.Count(t, s), n)
	}
	// Written, it stays as it is.
	if err := s.Tag(ctx, a, "a:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(ctx, b.Digest.String()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(ctx, name); err != nil {
		t.Fatal(err)
	}
	if p, err := s.Prune(ctx); err != nil || storetest.Count(t, s) != n-1 || p.Unknown.Files != 8 { // all of b and c but their manifests
		t.Errorf("pruned %+v, %v, %d blobs of %d", p, err, storetest.Count(t, s), n)
	}
	if err := storetest.Check(ctx, s); err != nil {
		t.Error(err)
	}
}

// TestCheckWritable: what would fail at the end of a checkpoint fails before.
func TestCheckWritable(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1})
	damageIndexes(t, s)
	if err := s.CheckWritable(ctx); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(s.Layout())
	if err != nil || len(entries) != 3 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if tags, err := s.Tags(ctx); err != nil || len(tags) != 1 {
		t.Errorf("tags %v, %v", tags, err)
	}
	index := filepath.Join(s.Layout(), "index.json")
	if err := errors.Join(os.Remove(index), os.Mkdir(index, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckWritable(ctx); err == nil {
		t.Error("a directory can be written")
	}
	readonly(t, s.Root(), func() {
		if err := s.CheckWritable(ctx); !errors.Is(err, unix.EROFS) {
			t.Errorf("on a read-only file system: %v", err)
		}
	})
}

// TestIndexBackupOld: what only index.json named, since another program has written it, has no name any more, is found by its digest, and is not collected.
func TestIndexBackupOld(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1})
	backup := filepath.Join(s.Root(), "index.backup.json")
	old, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	b := storetest.MustPut(t, s, "b:1", storetest.Spec{Seed: 2, Segments: []uint64{2}})
	if err := os.WriteFile(backup, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Layout(), "index.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := storetest.Count(t, s)
	if _, err := s.Prune(ctx); err != nil || storetest.Count(t, s) != n {
		t.Errorf("prune: %v, %d blobs of %d", err, storetest.Count(t, s), n)
	}
	if got, err := s.Resolve(ctx, b.Digest.String()); err != nil || got.Digest != b.Digest {
		t.Errorf("it is %v, %v", got, err)
	}
	// With a name it is as any other, and goes with the name.
	if err := s.Tag(ctx, b, "b:2"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(ctx, "b:2"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(ctx, b.Digest.String()); err == nil {
		t.Error("it is left without a name")
	}
}
