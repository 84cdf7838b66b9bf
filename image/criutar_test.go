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
	dir := t.TempDir()
	for i := range maxCRIUFiles + 1 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("core-%d.img", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeCRIU(t.Context(), io.Discard, dir); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one too many gives %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "core-0.img")); err != nil {
		t.Fatal(err)
	}
	if err := writeCRIU(t.Context(), io.Discard, dir); err != nil {
		t.Error(err)
	}
}
