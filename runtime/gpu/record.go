package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// RecordName is the file that lies beside CRIU's images, so that it travels with them through any client's tar.
const RecordName = "cryo-gpu.json"

// maxRecord bounds what is read of a record, bytes.
const maxRecord = 8 << 20

// engine is the name of the engine that this package is.
const engine = "driver"

// Record is what a restore must know of the GPUs a container had. It may be somebody else's word: nothing in it gives a
// container anything.
type Record struct {
	Engine    string     `json:"engine"` // "driver"
	Driver    string     `json:"driver"` // "580.159.04"
	CUDA      int        `json:"cuda,omitempty"`
	Devices   []Device   `json:"devices"` // those the container could see, in order
	Processes []Saved    `json:"processes"`
	CDI       []string   `json:"cdi,omitempty"`   // names of its CDI devices
	Edits     *cdi.Edits `json:"edits,omitempty"` // what these had put into its specification
	Nodes     []Node     `json:"nodes,omitempty"`
	Forced    []string   `json:"forced,omitempty"` // rules that were overridden
	Seconds   Seconds    `json:"seconds"`
}

// Device is a GPU the container could see.
type Device struct {
	UUID         string `json:"uuid"`
	Minor        int    `json:"minor"` // of /dev/nvidiaN
	Name         string `json:"name"`
	Architecture string `json:"architecture"` // compute capability, "9.0"
	Memory       int64  `json:"memory"`       // that it has, bytes
	Used         int64  `json:"used"`         // of which by the container, as far as the driver tells
}

// Saved is a process that had something on GPUs.
type Saved struct {
	PID     int      `json:"pid"` // in the container's pid namespace
	Command string   `json:"command"`
	Memory  int64    `json:"memory"`  // on devices, bytes
	Devices []string `json:"devices"` // UUIDs of those it held memory on
}

// Node is a device node.
type Node struct {
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

// Seconds is how long the parts of a save took.
type Seconds struct {
	Lock       float64 `json:"lock"`
	Checkpoint float64 `json:"checkpoint"`
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

// check says what cannot be so.
func (r Record) check() error {
	if r.Engine != engine {
		return fmt.Errorf("it is by the engine %.20q, which this version does not know", r.Engine)
	}
	known := map[string]bool{}
	for _, d := range r.Devices {
		if _, err := keeper.ParseUUID(d.UUID); err != nil {
			return err
		}
		if known[d.UUID] || d.Memory < 0 || d.Used < 0 {
			return fmt.Errorf("its GPU %s is not possible", d.UUID)
		}
		known[d.UUID] = true
	}
	seen := map[int]bool{}
	for _, p := range r.Processes {
		if p.PID <= 0 || seen[p.PID] || p.Memory < 0 || slices.ContainsFunc(p.Devices, func(d string) bool { return !known[d] }) {
			return fmt.Errorf("its process %d is not possible", p.PID)
		}
		seen[p.PID] = true
	}
	return cdi.Validate(r.CDI)
}
