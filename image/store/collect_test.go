package store_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// holdIndex takes the lock on index.json as another process would.
func holdIndex(t *testing.T, s *store.Store) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(s.Root(), "index.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

func TestRemove(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1, Segments: []uint64{1, 2, 3}})
	b := storetest.MustPut(t, s, "b", storetest.Spec{Seed: 2, Segments: []uint64{1, 2, 4}})
	if err := s.Tag(ctx, b, "b2"); err != nil {
		t.Fatal(err)
	}
	all := storetest.Count(t, s)
	if r, err := s.Remove(ctx, "b"); err != nil || r.Freed != 0 || storetest.Count(t, s) != all {
		t.Errorf("removing one of two names: %d, %v", r.Freed, err)
	}
	r, err := s.Remove(ctx, "a")
	if freed := r.Freed; err != nil || freed < 64<<10 || freed > 128<<10 {
		t.Errorf("freed %d, %v; want segment 3 and what is small", r.Freed, err)
	}
	if err := storetest.Check(ctx, s); err != nil {
		t.Error(err)
	}
	if n := storetest.Count(t, s); n != 7 { // manifest, config, index, criu, three segments
		t.Errorf("%d blobs left", n)
	}
	if _, err := s.Remove(ctx, "a"); !errdefs.IsNotFound(err) {
		t.Errorf("removing what is not there: %v", err)
	}
	if _, err := s.Remove(ctx, b.Digest.String()); err != nil {
		t.Error(err)
	}
	if n := storetest.Count(t, s); n != 0 {
		t.Errorf("%d blobs left", n)
	}
}

func TestOperationsKeepBlobs(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	op, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fresh := storetest.Bytes(77, 100)
	if err := s.Push(ctx, describe(fresh), bytes.NewReader(fresh)); err != nil {
		t.Fatal(err)
	}
	n := storetest.Count(t, s)
	if r, err := s.Remove(ctx, "a"); err != nil || r.Freed != 0 || storetest.Count(t, s) != n {
		t.Errorf("freed %d, %v while an operation runs", r.Freed, err)
	}
	op2, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	op.Close()
	if storetest.Count(t, s) != n {
		t.Error("collected while the second operation runs")
	}
	op2.Close()
	op2.Close() // twice is fine
	if left := storetest.Count(t, s); left != 0 {
		t.Errorf("%d blobs left after the last operation", left)
	}
}

func TestAbandon(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	n := storetest.Count(t, s)
	op, _ := s.Begin(ctx)
	fresh := storetest.Bytes(77, 100)
	if err := s.Push(ctx, describe(fresh), bytes.NewReader(fresh)); err != nil {
		t.Fatal(err)
	}
	if err := op.Abandon(); err != nil {
		t.Fatal(err)
	}
	if got := storetest.Count(t, s); got != n {
		t.Errorf("%d blobs, want %d", got, n)
	}
}

// An index, a subject and entries without a name, as other tools write them, keep what they need.
func TestCollectFollowsWhatOthersWrote(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	put := func(mediaType string, v any) ocispec.Descriptor {
		data, _ := json.Marshal(v)
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		if err := s.Push(ctx, d, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		return d
	}
	base := put(ocispec.MediaTypeImageManifest, ocispec.Manifest{Config: put(ocispec.MediaTypeImageConfig, "config"), Layers: []ocispec.Descriptor{put(ocispec.MediaTypeImageLayer, "layer")}})
	list := put(ocispec.MediaTypeImageIndex, ocispec.Index{Manifests: []ocispec.Descriptor{base}})
	storetest.MustPut(t, s, "snap", storetest.Spec{Seed: 1, Subject: &base})
	path := filepath.Join(s.Layout(), "index.json")
	data, _ := os.ReadFile(path)
	i, err := store.ParseIndex(data)
	if err != nil {
		t.Fatal(err)
	}
	i.Manifests = append(i.Manifests, list)
	data, _ = json.Marshal(i)
	os.WriteFile(path, data, 0o600)
	storetest.MustPut(t, s, "gone", storetest.Spec{Seed: 2})
	n := storetest.Count(t, s)
	if _, err := s.Remove(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	if got := storetest.Count(t, s); got != n-4 {
		t.Errorf("%d blobs, want %d", got, n-4)
	}
	if _, err := s.Remove(ctx, list.Digest.String()); err != nil {
		t.Fatal(err)
	}
	if got := storetest.Count(t, s); got != n-5 { // the subject still needs base
		t.Errorf("%d blobs, want %d", got, n-5)
	}
}

// TestUnreadableManifest: where a manifest is damaged or gone, no command takes what it needs, all others work, and what it is is said.
func TestUnreadableManifest(t *testing.T) {
	for name, harm := range map[string]func(string) error{
		"damaged": func(path string) error {
			data, err := os.ReadFile(path)
			if err == nil {
				data[100] ^= 1
				err = os.WriteFile(path, data, 0o600)
			}
			return err
		},
		"cut":  func(path string) error { return os.Truncate(path, 10) },
		"gone": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := storetest.Open(t), t.Context()
			a := storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
			storetest.MustPut(t, s, "b:1", storetest.Spec{Seed: 2, Segments: []uint64{2}})
			path := filepath.Join(s.Layout(), "blobs", "sha256", a.Digest.Encoded())
			whole, err := os.ReadFile(path)
			if err == nil {
				err = harm(path)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(s.Root(), "partial", a.Digest.Encoded()[1:]+"0"), make([]byte, 1<<20), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			n := storetest.Count(t, s)
			would, err := s.Prunable(ctx)
			if err != nil || would.Unneeded.Files != 0 || would.Partial.Files != 1 || len(would.Unreadable) != 1 || would.Busy {
				t.Errorf("would prune %+v, %v", would, err)
			}
			p, err := s.Prune(ctx)
			if err != nil || storetest.Count(t, s) != n || p.Partial.Files != 1 || p.Busy {
				t.Errorf("pruned %+v, %v, %d blobs of %d", p, err, storetest.Count(t, s), n)
			}
			if len(p.Unreadable) != 1 || p.Unreadable[0].Ref != "docker.io/library/a:1" || p.Unreadable[0].Digest != a.Digest {
				t.Errorf("unreadable are %v", p.Unreadable)
			}
			r, err := s.Remove(ctx, "b:1")
			if err != nil || r.Freed != 0 || len(r.Unreadable) != 1 || storetest.Count(t, s) != n {
				t.Errorf("removed %+v, %v, %d blobs of %d", r, err, storetest.Count(t, s), n)
			}
			// What waited goes when the manifest is there again.
			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
			op, err := s.Begin(ctx)
			if err == nil {
				err = op.Close()
			}
			if left := storetest.Count(t, s); err != nil || left != 5 {
				t.Errorf("%v, %d blobs left, want those of a:1", err, left)
			}
			if err := storetest.Check(ctx, s); err != nil {
				t.Error(err)
			}
			// And when it is given up.
			if err := harm(path); err != nil {
				t.Fatal(err)
			}
			if r, err := s.Remove(ctx, "a:1"); err != nil || len(r.Unreadable) > 0 || storetest.Count(t, s) != 0 {
				t.Errorf("removed %+v, %v, %d blobs left", r, err, storetest.Count(t, s))
			}
		})
	}
}

func TestWork(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	stale := filepath.Join(s.Root(), "work", "stale", "deep")
	if err := os.MkdirAll(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	w1, err := s.Work(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Error("stale directory is still there")
	}
	os.WriteFile(filepath.Join(w1.Dir, "x"), []byte("x"), 0o600)
	w2, err := s.Work(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(w1.Dir, "x")); err != nil || w1.Dir == w2.Dir {
		t.Errorf("the other's directory: %v", err)
	}
	for _, w := range []*store.Work{w1, w2} {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if e, _ := os.ReadDir(filepath.Join(s.Root(), "work")); len(e) != 0 {
		t.Errorf("left: %v", e)
	}
}

func TestIngest(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	data := storetest.Bytes(5, 10000)
	d := describe(data)
	file := filepath.Join(s.Root(), "partial", d.Digest.Encoded())
	p, err := s.Resume(ctx, d)
	if err != nil || p.Offset() != 0 {
		t.Fatal(err)
	}
	p.Write(data[:4000])
	if err := commit(ctx, p); !errdefs.IsDataLoss(err) || p.Offset() != 4000 {
		t.Errorf("commit of a part: %v", err)
	}
	p.Close()
	p, err = s.Resume(ctx, d)
	if err != nil || p.Offset() != 4000 {
		t.Fatalf("offset %d, %v", p.Offset(), err)
	}
	if _, err := p.Write(make([]byte, 6001)); !errdefs.IsDataLoss(err) {
		t.Errorf("too much: %v", err)
	}
	p.Write(make([]byte, 6000)) // as many as it should be, but others
	if err := commit(ctx, p); !errdefs.IsDataLoss(err) || p.Offset() != 0 {
		t.Errorf("commit of damage: %v, offset %d", err, p.Offset())
	}
	p.Write(data)
	if err := commit(ctx, p); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if p, err := s.Resume(ctx, d); err != nil || p != nil {
		t.Errorf("what is there: %v, %v", p, err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Error("partial file is still there")
	}
	if err := storetest.CheckBlobs(s); err != nil {
		t.Error(err)
	}
	// Longer than it may be, as after a change of what the file means: starts anew.
	other := describe(data[:100])
	os.WriteFile(filepath.Join(s.Root(), "partial", other.Digest.Encoded()), data, 0o600)
	p, err = s.Resume(ctx, other)
	if err != nil || p.Offset() != 0 {
		t.Fatalf("offset %d, %v", p.Offset(), err)
	}
	p.Close()
}

func TestOldPartialsAreSwept(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	for name, age := range map[string]time.Duration{"old": 30 * 24 * time.Hour, "new": time.Hour} {
		path := filepath.Join(s.Root(), "partial", digest.FromString(name).Encoded())
		os.WriteFile(path, []byte("x"), 0o600)
		os.Chtimes(path, time.Now().Add(-age), time.Now().Add(-age))
	}
	os.WriteFile(filepath.Join(s.Root(), "ingest", "blob-left"), []byte("x"), 0o600)
	op, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	e, _ := os.ReadDir(filepath.Join(s.Root(), "partial"))
	if len(e) != 1 || e[0].Name() != digest.FromString("new").Encoded() {
		t.Errorf("left in partial: %v", e)
	}
	if e, _ := os.ReadDir(filepath.Join(s.Root(), "ingest")); len(e) != 0 {
		t.Errorf("left in ingest: %v", e)
	}
}
