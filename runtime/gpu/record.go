package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// RecordName is the file that lies beside CRIU's images, so that it travels with them through any client's tar.
const RecordName = "cryo-gpu.json"

// maxRecord bounds what is read of a record, bytes.
const maxRecord = 16 << 20

// Record is what a restore must know of the GPUs a container had. It may be another's word: nothing in it gives a
// container anything.
type Record struct {
	record.GPU
	Edits *CDIEdits `json:"edits,omitempty"` // what its CDI devices had put into its specification
}

// WriteFile writes the record into the directory of the images.
func (r Record) WriteFile(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record GPUs: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, RecordName), data, 0o600); err != nil {
		return fmt.Errorf("record GPUs: %w", err)
	}
	return nil
}

// ReadRecord reads the record beside the images in dir; nil where there is none. A record that cannot be so is an error of
// kind DataLoss.
func ReadRecord(dir string) (*Record, error) {
	f, err := os.Open(filepath.Join(dir, RecordName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of GPUs: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, fmt.Errorf("read the record of GPUs: %w", err)
	}
	var r Record
	if len(data) > maxRecord {
		err = errors.New("it is too long")
	} else if err = json.Unmarshal(data, &r); err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of GPUs: %w: %w", err, errdefs.ErrDataLoss)
	}
	return &r, nil
}

// check returns an error that says what cannot be so.
func (r Record) check() error {
	if r.Engine != record.DriverEngine && r.Engine != record.KeeperEngine {
		return fmt.Errorf("it is by the engine %.20q, which this version does not know", r.Engine)
	}
	for _, d := range r.Devices {
		if _, err := device.ParseUUID(d.UUID); err != nil {
			return err
		}
	}
	if err := r.Check(); err != nil {
		return err
	}
	return ValidateDevices(r.CDI)
}
