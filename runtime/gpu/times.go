package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// timesName is a file in CRIU's work directory of a restore, for who has named that directory.
const timesName = "cryo-gpu-load.json"

// Loaded says how a container's GPUs were loaded.
type Loaded struct {
	Seconds   float64 `json:"load"`
	Prewarmed bool    `json:"prewarmed,omitempty"` // what it had handed over was on the devices before
	// GPUs say which took the place of which, in the order of the record.
	GPUs []driver.Pair `json:"gpus,omitempty"`
}

// WriteLoaded leaves that in CRIU's work directory.
func WriteLoaded(dir string, l Loaded) error {
	data, err := json.Marshal(l)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, timesName), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note the time of loading GPUs: %w", err)
	}
	return nil
}

// ReadLoaded reads that; the zero value where nothing was loaded.
func ReadLoaded(dir string) (l Loaded, err error) {
	data, err := os.ReadFile(filepath.Join(dir, timesName))
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	if err != nil {
		return l, fmt.Errorf("read the time of loading GPUs: %w", err)
	}
	return l, nil
}
