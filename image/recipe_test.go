package image_test

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// tool finds a program of the recipe; the pinned ones are where make tools puts them.
func tool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("needs %s", name)
	}
	t.Skipf("needs %s", name)
}

// TestRecipe restores by hand, as FORMAT.md tells it, and compares with Unpack.
func TestRecipe(t *testing.T) {
	pinned, err := filepath.Abs("../bin/tools")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", os.Getenv("PATH")+":"+pinned)
	for _, name := range []string{"oras", "zstd", "tar", "awk"} {
		tool(t, name)
	}
	ctx, root := context.Background(), t.TempDir()
	s, err := store.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	src := image.PackSource{Images: image.SampleImages(t), Config: image.SampleConfig, RootFS: func(_ context.Context, w io.Writer) error {
		_, err := w.Write(bytes.Repeat([]byte("a tar"), 5000))
		return err
	}}
	d, err := image.Pack(ctx, s, src, image.PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// An increment, which leaves gaps in the segments of its parent.
	devices, contents := storetest.PutDevices(t, s, "example.com/devices:1")
	parent, err := image.OpenParent(ctx, s, d, 4096)
	if err != nil {
		t.Fatal(err)
	}
	if err := flip(filepath.Join(src.Images, "pages-1.img")); err != nil {
		t.Fatal(err)
	}
	if d, err = image.Pack(ctx, s, src, image.PackOptions{Parent: parent}); err != nil {
		t.Fatal(err)
	}
	if err := s.Tag(ctx, d, "example.com/by-hand:1"); err != nil {
		t.Fatal(err)
	}
	snapshot, err := image.Open(ctx, s, d)
	if err != nil {
		t.Fatal(err)
	}
	if snapshot.Config.Parent == nil || snapshot.Config.Memory.Unused == 0 {
		t.Fatalf("nothing is left out of %+v", snapshot.Config.Memory)
	}
	want := filepath.Join(t.TempDir(), "images")
	if err := snapshot.Unpack(ctx, s, want, image.UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	cmd := exec.Command("../integration/recipe/restore-by-hand", "--oci-layout", s.Layout()+"@"+d.Digest.String(), out)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if b, err := exec.Command("diff", "-r", want, filepath.Join(out, "images")).CombinedOutput(); err != nil {
		t.Errorf("by hand the images differ: %s", b)
	}
	if b, err := os.ReadFile(filepath.Join(out, "rootfs.tar")); err != nil || len(b) != 25000 {
		t.Errorf("rootfs.tar has %d bytes, %v", len(b), err)
	}
	for _, name := range []string{"config.json", "blobs/index.zst"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	// What processes had handed over of their device memory, by process and GPU.
	out = filepath.Join(t.TempDir(), "out")
	cmd = exec.Command("../integration/recipe/restore-by-hand", "--oci-layout", s.Layout()+"@"+devices.Digest.String(), out)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	for name, want := range map[string][]byte{"d1.0": slices.Concat(contents[0], contents[2]), "d1.1": slices.Concat(contents[1], contents[3])} {
		if got, err := os.ReadFile(filepath.Join(out, "devices", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("by hand %s has %d other bytes, %v", name, len(got), err)
		}
	}
	// A flipped byte must not go unnoticed: oras verifies blobs.
	segment := filepath.Join(s.Layout(), "blobs", "sha256", snapshot.Segments()[0].Digest.Encoded())
	if err := flip(segment); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command("../integration/recipe/restore-by-hand", "--oci-layout", s.Layout()+"@"+d.Digest.String(), filepath.Join(t.TempDir(), "out"))
	if b, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("a damaged segment went unnoticed: %s", b)
	}
}

func flip(name string) error {
	if err := os.Chmod(name, 0o600); err != nil {
		return err
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 1
	return os.WriteFile(name, b, fs.FileMode(0o600))
}
