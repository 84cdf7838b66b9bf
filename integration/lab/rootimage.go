package lab

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ImportRoot imports an image, named ref, whose only layer is a tar archive of a root file system, as "make programs-roots" makes them. It is not read into memory.
func (h *Host) ImportRoot(ctx context.Context, ref, root string) error {
	f, err := os.Open(root)
	if err != nil {
		return &MissingError{"no " + root, "run: make programs-roots"}
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return fmt.Errorf("read the root file system of an image: %w", err)
	}
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.NewDigest(digest.SHA256, sum), Size: size}
	archive := layout{{Name: "oci-layout", Mode: 0o644, Content: []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	manifest := archive.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config: archive.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
			Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
			Config:   ocispec.ImageConfig{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}, Cmd: []string{"bash"}},
			RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layer.Digest}},
		}),
		Layers: []ocispec.Descriptor{layer},
	})
	manifest.Annotations = map[string]string{"io.containerd.image.name": ref, ocispec.AnnotationRefName: "1"}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{manifest}})
	if err != nil {
		return fmt.Errorf("encode image index: %w", err)
	}
	name := filepath.Join(h.Dir, "root.tar")
	if err := writeRoot(name, append(archive, File{Name: "index.json", Mode: 0o644, Content: index}), layer, f); err != nil {
		return err
	}
	defer os.Remove(name)
	return h.Ctr(ctx, "images", "import", "--snapshotter", "overlayfs", name).Err()
}

// writeRoot writes an OCI image layout as a tar archive, with a layer that is read from a file.
func writeRoot(name string, archive layout, layer ocispec.Descriptor, root io.ReadSeeker) error {
	out, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	defer out.Close()
	t := tar.NewWriter(out)
	if _, err := root.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the root file system of an image: %w", err)
	}
	if err := t.WriteHeader(&tar.Header{Name: path.Join("blobs/sha256", layer.Digest.Encoded()), Mode: 0o644, Size: layer.Size, Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0)}); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	if _, err := io.Copy(t, root); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	if err := writeTar(out, archive); err != nil { // it ends the archive
		return err
	}
	return out.Close()
}
