package order

import (
	"fmt"
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
	return write(work, originFile, "tell the shim who has signed the snapshot", o)
}

// ReadOrigin reads the origin of the images of a restore with this work directory of CRIU's; nil: nobody has said it.
func ReadOrigin(work, images string) (*Origin, error) {
	const doing = "read of which snapshot the images are"
	var o Origin
	path, found, err := read(work, originFile, doing, &o)
	if err != nil || !found {
		return nil, err
	}
	if filepath.Clean(o.Images) != filepath.Clean(images) {
		return nil, fmt.Errorf("%s: %s is not about %s: %w", doing, path, images, errdefs.ErrInvalidArgument)
	}
	return &o, nil
}
