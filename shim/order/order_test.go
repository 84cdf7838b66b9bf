package order

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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
