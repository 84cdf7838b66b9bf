package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// timesName is a file in CRIU's work directory of a restore, for who has named that directory.
const timesName = "cryo-gpu-load.json"

type times struct {
	Load float64 `json:"load"` // seconds
}

// WriteLoadTime leaves in CRIU's work directory how long it took to load.
func WriteLoadTime(dir string, load time.Duration) error {
	data, err := json.Marshal(times{Load: load.Seconds()})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, timesName), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note the time of loading GPUs: %w", err)
	}
	return nil
}

// ReadLoadTime reads that; 0 where nothing was loaded.
func ReadLoadTime(dir string) (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join(dir, timesName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	var t times
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		return 0, fmt.Errorf("read the time of loading GPUs: %w", err)
	}
	return time.Duration(t.Load * float64(time.Second)), nil
}
