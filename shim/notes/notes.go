// Package notes has files in the bundle of a restored container. The shim writes them, and cryo ps reads them: how much of the container's memory is there, and
// why the shim ended the container. They are removed with the bundle.
package notes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	lostFile   = "cryo-lost"
	memoryFile = "cryo-memory.json"
	most       = 64 << 10 // bytes of a note that are read
)

// Memory is how much of the memory that was to be filled in while a container runs is there, in bytes. Total is 0 until it is known.
type Memory struct {
	Here  int64 `json:"here"`
	Total int64 `json:"total"`
	// Waiting is why the rest does not come at present, such as a registry that is away; empty: it comes.
	Waiting string `json:"waiting,omitempty"`
}

// Write notes it in a bundle.
func (m Memory) Write(bundle string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := filepath.Join(bundle, memoryFile)
	if err = os.WriteFile(path+".new", data, 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("note how much memory is there: %w", err)
	}
	return nil
}

// ReadMemory gives what was noted; nil: nothing, since all was there before the container ran.
func ReadMemory(bundle string) (*Memory, error) {
	data, err := read(filepath.Join(bundle, memoryFile))
	if err != nil || data == nil {
		return nil, err
	}
	var m Memory
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read how much memory is there: %w", err)
	}
	return &m, nil
}

// WriteLost notes why a container was ended.
func WriteLost(bundle string, reason error) error {
	if err := os.WriteFile(filepath.Join(bundle, lostFile), []byte(reason.Error()+"\n"), 0o600); err != nil {
		return fmt.Errorf("note why a container was ended: %w", err)
	}
	return nil
}

// ReadLost gives the reason; empty if the container was not ended by the shim.
func ReadLost(bundle string) (string, error) {
	data, err := read(filepath.Join(bundle, lostFile))
	return strings.TrimSpace(string(data)), err
}

// Remove removes all notes of a bundle.
func Remove(bundle string) error {
	for _, name := range []string{lostFile, memoryFile} {
		if err := os.Remove(filepath.Join(bundle, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what was noted of a container: %w", err)
		}
	}
	return nil
}

// read reads a note; nil: there is none.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}
