package node

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu"
)

// Wanted is what a file says is to be kept prewarmed.
type Wanted struct {
	Budget Budget `toml:"budget"`
	// Snapshots come in the order in which they are fetched. Where a budget is too small for all, earlier ones stay.
	Snapshots []Snapshot `toml:"snapshot"`
}

// Budget bounds it, in MiB. 0: as [prewarm] in the host's configuration says, which wins where it is smaller.
type Budget struct {
	Disk int64 `toml:"disk"` // what was fetched
	GPU  int64 `toml:"gpu"`  // device memory on each GPU
}

// Snapshot is one of them.
type Snapshot struct {
	Ref     string   `toml:"ref"`     // normalised by [Read]
	GPU     bool     `toml:"gpu"`     // its device memory is kept loaded, too
	Devices []string `toml:"devices"` // names of CDI devices that restores will be given; empty: those it had
}

// Read reads the file. An error is InvalidArgument.
func Read(path string) (w Wanted, data []byte, err error) {
	if data, err = os.ReadFile(path); err == nil {
		if w, err = parse(data); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	if err != nil {
		return w, data, failure.New(errdefs.ErrInvalidArgument, "mend the file; see cryo node --help", "read what is to be prewarmed: %v", err)
	}
	return w, data, nil
}

func parse(data []byte) (w Wanted, err error) {
	if err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&w); err != nil {
		return w, err
	}
	if b := w.Budget; min(b.Disk, b.GPU) < 0 || max(b.Disk, b.GPU) > 1<<40 {
		return w, fmt.Errorf("budget.disk = %d, budget.gpu = %d: not between 0 and %d MiB", b.Disk, b.GPU, int64(1)<<40)
	}
	for i, s := range w.Snapshots {
		full, err := store.Normalize(s.Ref)
		switch {
		case err != nil:
			return w, err
		case w.index(full) >= 0 && w.index(full) < i:
			return w, fmt.Errorf("%s is listed twice", s.Ref)
		case len(s.Devices) > 0 && !s.GPU:
			return w, fmt.Errorf("%s: devices are for gpu = true", s.Ref)
		}
		if err := gpu.ValidateDevices(s.Devices); err != nil {
			return w, fmt.Errorf("%s: %w", s.Ref, err)
		}
		w.Snapshots[i].Ref = full
	}
	return w, nil
}

// has reports whether a normalised reference is listed.
func (w Wanted) has(ref string) bool { return w.index(ref) >= 0 }

func (w Wanted) index(ref string) int {
	return slices.IndexFunc(w.Snapshots, func(s Snapshot) bool { return s.Ref == ref })
}
