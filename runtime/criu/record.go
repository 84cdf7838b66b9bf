package criu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
)

// recordName is the file that lies beside CRIU's images.
const recordName = record.ChoicesFile

// Record keeps the choices of a dump that its restore must repeat.
type Record = record.Choices

// WriteRecord writes r beside the images in dir.
func WriteRecord(dir string, r Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), data, 0o600); err != nil {
		return fmt.Errorf("record options of the dump: %w", err)
	}
	return nil
}

// ReadRecord reads the choices of the dump in dir. A dump that was not made by cryo has no record: what can be told
// from the images alone is returned then.
func ReadRecord(dir string) (Record, error) {
	data, err := os.ReadFile(filepath.Join(dir, recordName))
	if errors.Is(err, fs.ErrNotExist) {
		streams, err := HasStreams(dir)
		return Record{TCPEstablished: streams}, err
	}
	if err != nil {
		return Record{}, fmt.Errorf("read options of the dump: %w", err)
	}
	r, err := record.ParseChoices(data)
	if err != nil {
		return Record{}, fmt.Errorf("read options of the dump: %w: %w", err, errdefs.ErrDataLoss)
	}
	return r, nil
}

// HasStreams reports whether the dump in dir has TCP sockets with a peer: connections, or what is left of one that has ended while its descriptor is open.
func HasStreams(dir string) (bool, error) {
	streams, err := filepath.Glob(filepath.Join(dir, "tcp-stream-*.img"))
	return len(streams) > 0, err
}

// CheckImages returns an error of kind DataLoss unless dir looks like a complete dump by runc: the inventory, which
// CRIU writes last, and runc's descriptors.json are there.
func CheckImages(dir string) error {
	for _, name := range []string{"inventory.img", "descriptors.json"} {
		info, err := os.Stat(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && !info.Mode().IsRegular():
			return fmt.Errorf("restore from %s: no %s, so not a complete checkpoint: %w", dir, name, errdefs.ErrDataLoss)
		case err != nil:
			return fmt.Errorf("restore from %s: %w", dir, err)
		}
	}
	return nil
}
