package order

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/signature"
)

// originFile lies in CRIU's work directory.
const originFile = "cryo-origin.json"

// Origin says of which snapshot CRIU's images are, and has what it is judged by, which the shim does once more.
type Origin struct {
	Images     string               `json:"images"`
	Refs       []string             `json:"refs"` // as in [signature.Judge]
	Digest     digest.Digest        `json:"digest"`
	Signatures []signature.Attached `json:"signatures"` // none that is damaged
}

// Write writes the origin into CRIU's work directory.
func (o Origin) Write(work string) error {
	data, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(filepath.Join(work, originFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("tell the shim who has signed the snapshot: %w", err)
	}
	return nil
}

// ReadOrigin reads the origin of the images of a restore with this work directory of CRIU's; nil: nobody has said it.
func ReadOrigin(work, images string) (*Origin, error) {
	path := filepath.Join(work, originFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read of which snapshot the images are: %w", err)
	}
	var o Origin
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, fmt.Errorf("read of which snapshot the images are: %s: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	if filepath.Clean(o.Images) != filepath.Clean(images) {
		return nil, fmt.Errorf("read of which snapshot the images are: %s is not about %s: %w", path, images, errdefs.ErrInvalidArgument)
	}
	return &o, nil
}
