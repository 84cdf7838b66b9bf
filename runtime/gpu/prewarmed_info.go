package gpu

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Prewarmed describes device memory that is loaded.
type Prewarmed struct {
	Version   int       `json:"version"`
	Reference string    `json:"reference"` // of the snapshot, by which it was prewarmed
	Digest    string    `json:"digest"`    // of its manifest
	Created   time.Time `json:"created"`
	// Pieces are all that the snapshot has, in the order of its record, each with the device of this host that it is on.
	Pieces []record.GPUPiece `json:"pieces"`
	// Facts are what the driver said when it was loaded. But for what is free, they hold as long as the memory does: its
	// descriptors keep the driver from being replaced.
	Facts device.Facts `json:"facts"`

	Used   time.Time `json:"-"` // when it was asked for last
	Leased bool      `json:"-"` // a restore has it

	dir string
}

// Bytes is how much is loaded on each device, by UUID.
func (i Prewarmed) Bytes() map[string]int64 {
	bytes := map[string]int64{}
	for _, p := range i.Pieces {
		bytes[p.Device] += p.Size
	}
	return bytes
}

// prewarmedVersion of the file, and of how its process is asked. Others are left alone by restores.
const prewarmedVersion = 2

// infoName is the file's in a directory.
const infoName = "prewarmed.json"

// same reports whether another is of the same snapshot, on the same devices.
func (i Prewarmed) same(o Prewarmed) bool {
	return i.Digest == o.Digest && slices.Equal(i.Pieces, o.Pieces)
}

func readInfo(dir string) (i Prewarmed, err error) {
	path := filepath.Join(dir, infoName)
	data, err := os.ReadFile(path)
	if err != nil {
		return i, err
	}
	stat, err := os.Stat(path)
	if err != nil {
		return i, err
	}
	if err := json.Unmarshal(data, &i); err != nil {
		return i, fmt.Errorf("read %s: %w", path, err)
	}
	i.Used, i.dir = stat.ModTime(), dir
	return i, nil
}

// write makes the file, and opens it.
func (i Prewarmed) write(dir string) (*os.File, error) {
	data, err := json.Marshal(i)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, infoName)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}
