package registry

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestSigned: signatures go along in layouts and archives, and one that is refused leaves nothing.
func TestSigned(t *testing.T) {
	src, ctx := storetest.Open(t), t.Context()
	d := storetest.MustPut(t, src, "app:v1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	private, public := storetest.Key(t)
	key, err := signature.ReadPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Attach(ctx, []signature.Attached{storetest.SignFor(t, private, d, d)}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, location := range []string{"oci:" + dir + "/layout", "oci-archive:" + dir + "/a.tar", "oci:" + dir + "/layout"} {
		if err := Export(ctx, src, d, "app:v1", location); err != nil {
			t.Fatal(err)
		}
		for at, want := range map[string][]string{
			location:                               {"docker.io/library/app:v1", ""},
			location + ":docker.io/library/app:v1": {"docker.io/library/app:v1"},
		} {
			dst := storetest.Open(t)
			var asked []string
			judge := func(refs []string, of digest.Digest, all []signature.Attached, unread error) error {
				if asked = refs; !key.SignedBy(of, all) || of != d.Digest || len(all) != 1 || unread != nil {
					t.Errorf("%s: %s has %+v, %v", at, of, all, unread)
				}
				return os.ErrPermission
			}
			if _, _, err := Import(ctx, dst, at, judge, false); !errors.Is(err, os.ErrPermission) || storetest.Count(t, dst) != 0 {
				t.Errorf("%s: refused with %v, %d blobs are left", at, err, storetest.Count(t, dst))
			}
			if !slices.Equal(asked, want) {
				t.Errorf("%s: judged as %q, want %q", at, asked, want)
			}
			_, _, err := Import(ctx, dst, at, func([]string, digest.Digest, []signature.Attached, error) error { return nil }, false)
			if err != nil {
				t.Error(err)
			}
			if all, err := dst.Signatures(ctx, d.Digest); err != nil || !key.SignedBy(d.Digest, all) {
				t.Errorf("%s: kept %+v, %v", at, all, err)
			}
		}
	}
	// A store is a layout, too.
	dst := storetest.Open(t)
	if _, got, err := Import(ctx, dst, "oci:"+src.Layout(), nil, false); err != nil || got.Digest != d.Digest {
		t.Errorf("from a store: %v, %v", got, err)
	}
	// A bundle that is damaged is a signature that is.
	all, err := src.Signatures(ctx, d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(dir, "layout", "blobs", "sha256", all[0].Bundle.Descriptor.Digest.Encoded())
	if err := os.WriteFile(bundle, []byte("damage"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = Import(ctx, storetest.Open(t), "oci:"+dir+"/layout", func(_ []string, _ digest.Digest, all []signature.Attached, _ error) error {
		if len(all) != 1 || all[0].Err == nil {
			t.Errorf("damaged: %+v", all)
		}
		return nil
	}, false)
	if err != nil {
		t.Error(err)
	}
}
