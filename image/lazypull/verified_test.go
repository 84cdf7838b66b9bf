package lazypull

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image"
	segments "github.com/cryo-project/cryo/image/segment"
)

// content writes all of the segment, which is on its way, and gives what passes it on.
func content(t *testing.T, r *rig) *os.File {
	t.Helper()
	p := r.partial(t)
	if _, err := p.Write(r.data); err != nil {
		t.Fatal(err)
	}
	f, err := p.Content()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// trusted tells whether the frames of a segment need no digests.
func trusted(a image.Arriving) bool {
	_, ok := a.(interface {
		Verified() (segments.Verified, bool)
	}).Verified()
	return ok
}

// TestWhole has a segment there when it is verified, and not before, though all of its bytes are. What is there is the very file that was passed, whatever has its name.
func TestWhole(t *testing.T) {
	for name, late := range map[string]bool{"opened before": false, "opened after": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.source.Whole = true
			f := content(t, r)
			var a image.Arriving
			if !late {
				a = r.open(t)
				follows := make(chan struct{})
				go r.source.Follow(t.Context(), func() { close(follows) })
				time.Sleep(20 * time.Millisecond)
				r.reads(t, a, 0, 4096)
				if a.There(1) || trusted(a) {
					t.Error("it is there, and nobody has verified it")
				}
				defer func() { <-follows }()
			}
			path := filepath.Join(r.store.Root(), "partial", r.segment.Digest.Encoded())
			if err := os.Rename(path, path+"-"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, make([]byte, len(r.data)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := r.source.Verified(r.segment, f); err != nil {
				t.Fatal(err)
			}
			if late {
				a = r.open(t)
			}
			if !a.There(r.segment.Size) {
				t.Error("it is verified, and not there")
			}
			r.reads(t, a, 0, len(r.data))
			if root := os.Geteuid() == 0; trusted(a) != root {
				t.Errorf("it is verified: %v, root: %v", !root, root)
			}
		})
	}
}

// TestWholeStored has a segment come into the store by other hands, and refuses one that cannot be opened.
func TestWholeStored(t *testing.T) {
	r := newRig(t)
	r.source.Whole = true
	a := r.open(t)
	f := content(t, r)
	f.Close()
	if err := os.Rename(filepath.Join(r.store.Root(), "partial", r.segment.Digest.Encoded()), filepath.Join(r.store.Layout(), "blobs", "sha256", r.segment.Digest.Encoded())); err != nil {
		t.Fatal(err)
	}
	if err := r.source.Verified(r.segment, nil); err != nil || !a.There(r.segment.Size) {
		t.Errorf("it is in the store, and not there: %v", err)
	}

	r = newRig(t)
	r.source.Whole = true
	r.open(t)
	short, err := os.Create(filepath.Join(t.TempDir(), "short"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.source.Verified(r.segment, short); err == nil {
		t.Error("a segment that is another is taken")
	}
}
