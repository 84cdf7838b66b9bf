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

// write writes a value as JSON into a file of CRIU's work directory. doing says in an error what was being done.
func write(work, name, doing string, value any) error {
	data, err := json.Marshal(value)
	if err == nil {
		err = os.WriteFile(filepath.Join(work, name), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// read reads what write has written, and gives the file's path; found is false if there is no such file.
func read(work, name, doing string, value any) (path string, found bool, err error) {
	path = filepath.Join(work, name)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, false, nil
	}
	if err != nil {
		return path, false, fmt.Errorf("%s: %w", doing, err)
	}
	if err := json.Unmarshal(data, value); err != nil {
		return path, false, fmt.Errorf("%s: %s: %w: %w", doing, path, err, errdefs.ErrInvalidArgument)
	}
	return path, true, nil
}
