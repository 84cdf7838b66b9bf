package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	noteFile = "cryo-memory.json"
	maxNote  = 64 << 10 // bytes of a note that are read
)

// MemoryNote is how much of the memory that was to be filled in while a container runs is there, in bytes. Total is 0 until it is known.
type MemoryNote struct {
	Here  int64 `json:"here"`
	Total int64 `json:"total"`
	// Waiting is why the rest does not come at present, such as a registry that is away; empty: it comes.
	Waiting string `json:"waiting,omitempty"`
	// Lost is why the shim has ended the container; empty: it has not.
	Lost string `json:"lost,omitempty"`
}

// Write notes it in a bundle.
func (m MemoryNote) Write(bundle string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := filepath.Join(bundle, noteFile)
	if err = os.WriteFile(path+".new", data, 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("note how much memory is there: %w", err)
	}
	return nil
}

// ReadMemoryNote returns what was noted; nil: nothing, since all was there before the container ran.
func ReadMemoryNote(bundle string) (*MemoryNote, error) {
	f, err := os.Open(filepath.Join(bundle, noteFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var m MemoryNote
	if err == nil {
		defer f.Close()
		err = json.NewDecoder(io.LimitReader(f, maxNote)).Decode(&m)
	}
	if err != nil {
		return nil, fmt.Errorf("read how much memory is there: %w", err)
	}
	return &m, nil
}
