package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestAttach: a signature stays with what it is of, under whatever name that is, and goes with it.
func TestAttach(t *testing.T) {
	s, ctx := storetest.Open(t), t.Context()
	a := storetest.MustPut(t, s, "a", storetest.Spec{Seed: 1})
	b := storetest.MustPut(t, s, "b", storetest.Spec{Seed: 2})
	private, public := storetest.Key(t)
	key, err := signature.ReadPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	bare := storetest.Count(t, s)
	for range 2 { // twice is once
		if err := s.Attach(ctx, []signature.Attached{storetest.SignFor(t, private, a, a), {Err: os.ErrInvalid}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Attach(ctx, []signature.Attached{storetest.SignFor(t, private, b, b)}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		d    string
		want bool
	}{{"a", true}, {"b", true}} {
		d, err := s.Resolve(ctx, test.d)
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.Signatures(ctx, d.Digest)
		if err != nil || len(all) == 0 || key.SignedBy(d.Digest, all) != test.want {
			t.Errorf("%s: %+v, %v", test.d, all, err)
		}
	}
	if tags, err := s.Tags(ctx); err != nil || len(tags) != 2 {
		t.Errorf("tags: %v, %v", tags, err)
	}
	if err := s.Tag(ctx, a, "again"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Signatures(ctx, a.Digest); err != nil || !key.SignedBy(a.Digest, all) {
		t.Errorf("under another name: %+v, %v", all, err)
	}
	if err := storetest.Check(ctx, s); err != nil {
		t.Error(err)
	}
	// One that is damaged spoils neither others nor the collection.
	all, err := s.Signatures(ctx, a.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Layout(), "blobs", "sha256", all[0].Manifest.Descriptor.Digest.Encoded()), []byte("damage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if left, err := s.Signatures(ctx, a.Digest); err != nil || len(left) != len(all)-1 {
		t.Errorf("%d left of %d, %v", len(left), len(all), err)
	}
	if _, err := s.Remove(ctx, "again"); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Signatures(ctx, a.Digest); err != nil || len(all) != 0 {
		t.Errorf("of what is gone: %+v, %v", all, err)
	}
	if n := storetest.Count(t, s); n != bare/2+3 { // b's, its signature's manifest and bundle, and the empty config
		t.Errorf("%d blobs, of %d without signatures", n, bare)
	}
	if _, err := s.Remove(ctx, "b"); err != nil || storetest.Count(t, s) != 0 {
		t.Errorf("%d blobs left, %v", storetest.Count(t, s), err)
	}
	index, err := os.ReadFile(filepath.Join(s.Layout(), "index.json"))
	if err != nil || len(index) > 200 {
		t.Errorf("left in the index: %s, %v", index, err)
	}
}
