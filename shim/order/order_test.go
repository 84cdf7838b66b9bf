package order

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/signature/signaturetest"
)

func TestOrder(t *testing.T) {
	dir := t.TempDir()
	for _, of := range []Of{Memory, Devices} {
		if o, err := Read(dir, of, "/images"); o != nil || err != nil {
			t.Errorf("without an order: %v, %v", o, err)
		}
		want := Order{Root: "/root/" + string(of), Images: "/images", Arrival: "/arrival", Whole: true, Snapshot: ocispec.Descriptor{MediaType: "m", Digest: "sha256:1", Size: 7}}
		if err := want.Write(dir, of); err != nil {
			t.Fatal(err)
		}
		if o, err := Read(dir, of, "/images/"); err != nil || !reflect.DeepEqual(*o, want) {
			t.Errorf("it comes back as %v, %v", o, err)
		}
		if _, err := Read(dir, of, "/other"); !errdefs.IsInvalidArgument(err) {
			t.Errorf("for other images it gives %v", err)
		}
	}
}

func TestOrigin(t *testing.T) {
	dir := t.TempDir()
	if o, err := ReadOrigin(dir, "/images"); o != nil || err != nil {
		t.Errorf("without an origin: %v, %v", o, err)
	}
	private, _ := signaturetest.Key(t)
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("a snapshot"), Size: 10}
	want := Origin{Images: "/images", Refs: []string{"a.b/c:1", ""}, Digest: d.Digest, Signatures: []signature.Attached{signaturetest.Sign(t, private, d, d)}}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	if o, err := ReadOrigin(dir, "/images/"); err != nil || !reflect.DeepEqual(*o, want) {
		t.Errorf("it comes back as %v, %v", o, err)
	}
	if _, err := ReadOrigin(dir, "/other"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("for other images it gives %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, originFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadOrigin(dir, "/images"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("cut short it gives %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"root":"/root","images":"/images"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, string(Memory)), b, 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := Read(dir, Memory, "/images")
		switch {
		case err == nil && (!filepath.IsAbs(o.Root) || filepath.Clean(o.Images) != "/images"):
			t.Errorf("gives %+v", o)
		case err != nil && !errdefs.IsInvalidArgument(err):
			t.Errorf("gives %v", err)
		}
	})
}
