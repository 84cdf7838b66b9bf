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
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
)

// RecordName is the file that lies beside CRIU's images, so that it travels with them through any client's tar.
const RecordName = "cryo-gpu.json"

// Bounds of what is read of a record.
const (
	maxRecord  = 16 << 20 // bytes
	maxVersion = 100      // bytes of a library's version
	// pieceUnit divides addresses and sizes of pieces: the largest page of any host. The driver's own unit is 2 MiB.
	pieceUnit = 64 << 10
	// MaxPieces is how many there may be in all: what has more goes by the driver.
	MaxPieces = 1 << 17
)

// Names of engines in a record.
const (
	DriverEngine = "driver" // the driver has moved device memory into the memory of the processes
	KeeperEngine = "keeper" // pieces of it were handed over before that
)

// Record is what a restore must know of the GPUs a container had. It may be somebody else's word: nothing in it gives a
// container anything.
type Record struct {
	Engine    string     `json:"engine"`
	Driver    string     `json:"driver"` // "580.159.04"
	CUDA      int        `json:"cuda,omitempty"`
	Devices   []Device   `json:"devices"` // those the container could see, in order
	Processes []Saved    `json:"processes"`
	CDI       []string   `json:"cdi,omitempty"`   // names of its CDI devices
	Edits     *cdi.Edits `json:"edits,omitempty"` // what these had put into its specification
	Nodes     []Node     `json:"nodes,omitempty"`
	Forced    []string   `json:"forced,omitempty"` // rules that were overridden
	Seconds   Seconds    `json:"seconds"`
	// Library is what the container was given to hand device memory over, of the engine keeper.
	Library *Library `json:"library,omitempty"`
}

// Library is the file that the processes have preloaded.
type Library struct {
	Version string `json:"version"`
	Digest  string `json:"digest"` // of the file: "sha256:" and 64 hexadecimal digits
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
	Memory  int64    `json:"memory"`  // on devices, bytes, Pieces included
	Devices []string `json:"devices"` // UUIDs of those it held memory on
	// Pieces are what it has handed over, by ascending address. The memory of a snapshot has them as segments of their own. Who
	// sends or loads them numbers those of all processes, in the order of the record, from 0.
	Pieces []Piece `json:"pieces,omitempty"`
	// Fallback says why it has handed nothing over, in a container of the engine keeper.
	Fallback string `json:"fallback,omitempty"`
}

// Piece is device memory that was handed over.
type Piece struct {
	Address uint64 `json:"address"` // in the process
	Size    int64  `json:"size"`    // bytes
	Device  string `json:"device"`  // UUID
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
	if r.Engine != DriverEngine && r.Engine != KeeperEngine {
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
	if err := r.checkPieces(known); err != nil {
		return err
	}
	return cdi.Validate(r.CDI)
}

// maxAddress is above every address of a process.
const maxAddress = 1 << 57

// checkPieces says what of the engine keeper cannot be so.
func (r Record) checkPieces(known map[string]bool) error {
	var count int
	for _, p := range r.Processes {
		if len(p.Fallback) > 0 && len(p.Pieces) > 0 {
			return fmt.Errorf("its process %d has handed over memory and has not", p.PID)
		}
		count += len(p.Pieces)
		var end uint64
		for _, piece := range p.Pieces {
			size := uint64(piece.Size)
			switch {
			case piece.Size <= 0 || size%pieceUnit != 0 || piece.Address%pieceUnit != 0,
				piece.Address < end || piece.Address > maxAddress || size > maxAddress-piece.Address,
				!known[piece.Device]:
				return fmt.Errorf("a piece of %d bytes at %#x of its process %d is not possible", piece.Size, piece.Address, p.PID)
			}
			end = piece.Address + size
		}
	}
	switch {
	case count > MaxPieces:
		return fmt.Errorf("it has %d pieces of memory", count)
	case count > 0 && (r.Engine != KeeperEngine || r.Library == nil):
		return errors.New("pieces of memory were handed over, and it does not say what by")
	case r.Library != nil && (r.Engine != KeeperEngine || digest.Digest(r.Library.Digest).Validate() != nil || len(r.Library.Version) > maxVersion):
		return errors.New("its library is not possible")
	}
	return nil
}
