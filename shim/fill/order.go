package fill

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// orderName is the file in CRIU's work directory.
const orderName = "cryo-lazy.json"

// Order says where the memory is that CRIU's images lack.
type Order struct {
	Root     string             `json:"root"`     // of the store
	Snapshot ocispec.Descriptor `json:"snapshot"` // its manifest
	Images   string             `json:"images"`   // CRIU's images, without what is filled in later
	// Arrival is the directory where the command listens that pulls the snapshot's segments. Empty: all are in the store.
	Arrival string `json:"arrival,omitempty"`
	// Awaited is the file that stands until all that is needed of them is here; see [arrival.Expect].
	Awaited string `json:"awaited,omitempty"`
	// Whole: segments are taken when all of each is here, which nobody needs sooner; see [arrival.Coming.Whole].
	Whole bool `json:"whole,omitempty"`
	// Rate bounds how many bytes a second are filled in that nobody waits for. 0: nothing does.
	Rate int64 `json:"rate,omitempty"`
}

// Write writes the order into CRIU's work directory.
func (o Order) Write(work string) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, orderName), data, 0o600); err != nil {
		return fmt.Errorf("order memory to be filled in later: %w", err)
	}
	return nil
}

// ReadOrder reads the order of the restore with this work directory of CRIU's, whose images are in images; nil: there is none.
func ReadOrder(work, images string) (*Order, error) {
	data, err := os.ReadFile(filepath.Join(work, orderName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what memory is to be filled in later: %w", err)
	}
	var o Order
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, fmt.Errorf("read what memory is to be filled in later: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	// One of another restore would fill in other memory.
	if filepath.Clean(o.Images) != filepath.Clean(images) || !filepath.IsAbs(o.Root) {
		return nil, fmt.Errorf("read what memory is to be filled in later: the order in %s is not for %s: %w", work, images, errdefs.ErrInvalidArgument)
	}
	return &o, nil
}
