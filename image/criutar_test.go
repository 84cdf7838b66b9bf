package image

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// TestTooManyImages packs one image more than a snapshot may have, and as many as it may.
func TestTooManyImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := filepath.Join(dir, "core-0.img")
	writeFile(t, first, nil)
	for i := range maxCRIUFiles {
		if err := os.Link(first, filepath.Join(dir, fmt.Sprintf("core-%d.img", i+1))); err != nil { // faster than a file each
			t.Fatal(err)
		}
	}
	if err := writeCRIU(t.Context(), io.Discard, dir); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one too many gives %v", err)
	}
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	if err := writeCRIU(t.Context(), io.Discard, dir); err != nil {
		t.Error(err)
	}
}
