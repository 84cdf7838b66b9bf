package order

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// allowFile says what a restored container may have beyond its specification.
const allowFile = "cryo-allow.json"

// Allow writes the grants that whoever restores allows into CRIU's work directory, for the comparison that the shim makes before the container runs.
func Allow(work string, grants []string) error {
	data, err := json.Marshal(grants)
	if err == nil {
		err = os.WriteFile(filepath.Join(work, allowFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("tell the shim what is allowed: %w", err)
	}
	return nil
}

// Allowed reads them. A client that writes none, such as ctr, allows nothing beyond the specification that it gives.
func Allowed(work string) (grants []string, err error) {
	path := filepath.Join(work, allowFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what is allowed: %w", err)
	}
	if err := json.Unmarshal(data, &grants); err != nil {
		return nil, fmt.Errorf("read what is allowed: %s: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	return grants, nil
}
