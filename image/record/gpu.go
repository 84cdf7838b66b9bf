package record

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Engines, the ways in which device memory was saved.
const (
	// DriverEngine: the driver's own checkpoint has moved all of it into the memory of the processes.
	DriverEngine = "driver"
	// KeeperEngine: pieces of it were handed over before that, and are device memory of the snapshot ([GPUProcess.Pieces]).
	KeeperEngine = "keeper"
)

// GPU is what the container had of GPUs, and how what it kept there was saved.
type GPU struct {
	// Engine says how: [DriverEngine] or [KeeperEngine].
	Engine string `json:"engine"`
	Driver string `json:"driver"`         // version of NVIDIA's driver, "580.159.04"
	CUDA   int    `json:"cuda,omitempty"` // newest version of CUDA that it supports, 13000 for 13.0
	// Devices are the GPUs of the container, in order.
	Devices []GPUDevice `json:"devices"`
	// Processes are those that held something on them.
	Processes []GPUProcess `json:"processes"`
	// CDI are the names of the CDI devices that gave the container its GPUs; Spec is without what they had put there.
	CDI []string `json:"cdi,omitempty"`
	// Mounts are where these devices mounted files in the container. CRIU's images want something mounted at each.
	Mounts []string `json:"mounts,omitempty"`
	// Nodes are the device nodes that the container had for its GPUs.
	Nodes []GPUNode `json:"nodes,omitempty"`
	// Forced are rules that spoke against the checkpoint and were overridden: the restore may fail.
	Forced  []string   `json:"forced,omitempty"`
	Seconds GPUSeconds `json:"seconds"`
	// Library is what the container was given to hand device memory over, with the engine keeper. The host that restores must have the same.
	Library *GPULibrary `json:"library,omitempty"`
}

// GPULibrary is the file that the container's processes have preloaded.
type GPULibrary struct {
	Version string        `json:"version"`
	Digest  digest.Digest `json:"digest"` // of the file
}

// GPUDevice is a GPU.
type GPUDevice struct {
	UUID         string `json:"uuid"`
	Minor        int    `json:"minor"` // of /dev/nvidiaN on the host
	Name         string `json:"name"`
	Architecture string `json:"architecture"` // compute capability, "9.0"
	Memory       int64  `json:"memory"`       // bytes that it has
	Used         int64  `json:"used"`         // bytes of which the container held, as far as the driver told
}

// GPUProcess is a process that used GPUs.
type GPUProcess struct {
	PID     int      `json:"pid"` // inside the container
	Command string   `json:"command"`
	Memory  int64    `json:"memory"`  // bytes on its devices, Pieces included
	Devices []string `json:"devices"` // their UUIDs
	// Pieces are the device memory that it has handed over, by ascending address. The sender or loader of them numbers those of all processes, in
	// the order of the snapshot, from 0.
	Pieces []GPUPiece `json:"pieces,omitempty"`
	// Imports are the memory of others that it has mapped, by descriptors.
	Imports []GPUImport `json:"imports,omitempty"`
	// Parted: it has let go of what it shares with others, and of multicast objects, and waits for its library to have them again.
	Parted bool `json:"parted,omitempty"`
	// Fallback says why it has handed nothing over, with the engine keeper: the driver has saved all that it had.
	Fallback string `json:"fallback,omitempty"`
}

// GPUPiece is device memory that a process has handed over: one range of its addresses, on one GPU.
type GPUPiece struct {
	Address uint64 `json:"address"`
	Size    int64  `json:"size"`   // bytes
	Device  string `json:"device"` // UUID
}

// GPUImport is device memory, or a multicast object, that a process has imported from another process of the container, or from itself.
type GPUImport struct {
	Memory int `json:"memory"` // its number in the process
	Owner  int `json:"owner"`  // the PID inside the container
	Of     int `json:"of"`     // which of the owner's pieces it is, from 0
	// Host: the memory is the host's. CRIU's images contain its bytes, and Of is its number in the owner.
	Host bool `json:"host,omitempty"`
	// Multicast: it is a multicast object, which has no bytes, and Of is its number in the owner.
	Multicast bool `json:"multicast,omitempty"`
}

// Handed is how much device memory the process has handed over, in bytes.
func (p GPUProcess) Handed() (n int64) {
	for _, piece := range p.Pieces {
		n += piece.Size
	}
	return n
}

// HandedOver is how much device memory all processes have handed over, bytes; g may be nil.
func (g *GPU) HandedOver() (n int64) {
	if g == nil {
		return 0
	}
	for _, p := range g.Processes {
		n += p.Handed()
	}
	return n
}

// OwnedPiece is device memory and the process that has handed it over.
type OwnedPiece struct {
	GPUPiece
	PID int // inside the container
}

// Pieces are those of all processes, in the order in which they are numbered.
func (g *GPU) Pieces() (all []OwnedPiece) {
	for _, p := range g.Processes {
		for _, piece := range p.Pieces {
			all = append(all, OwnedPiece{piece, p.PID})
		}
	}
	return all
}

// GPUNode is a device node.
type GPUNode struct {
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

// GPUSeconds are parts of the freeze.
type GPUSeconds struct {
	Lock       float64 `json:"lock"`       // until all processes had finished their work on the GPUs
	Checkpoint float64 `json:"checkpoint"` // until it was in the memory of the processes
	// Devices is how long it took to take in what processes had handed over, of which some or all may be no part of the freeze.
	Devices float64 `json:"devices,omitempty"`
}

// Limits of what a snapshot may say.
const (
	MaxAddress  = 1 << 57 // above every address of a process
	MaxPID      = 1<<31 - 1
	MaxGPUs     = 1 << 10 // of a container
	MaxPieces   = 1 << 17 // of all processes; they fit into a config. What has more goes by the driver
	MaxFallback = 1000    // bytes of [GPUProcess.Fallback]

	maxItems   = 1 << 16
	maxBytes   = 1 << 60
	maxVersion = 100 // bytes of a library's version
	// pieceUnit divides addresses and sizes of pieces: the largest page of any host. The driver's own unit is 2 MiB.
	pieceUnit = 64 << 10
)

// Check returns an error that says what cannot be so.
func (g *GPU) Check() error {
	if len(g.Devices) > MaxGPUs || len(g.CDI) > MaxGPUs || len(g.Processes) > maxItems || len(g.Mounts) > maxItems || len(g.Nodes) > maxItems {
		return errors.New("it lists more GPUs, or more of them, than there can be")
	}
	known := map[string]bool{}
	var used int64
	for _, d := range g.Devices {
		used += d.Used
		if d.UUID == "" || known[d.UUID] || d.Memory < 0 || d.Used < 0 || used < 0 || used > maxBytes || d.Minor < 0 {
			return fmt.Errorf("its GPU %.100q is not possible", d.UUID)
		}
		known[d.UUID] = true
	}
	var all int64
	seen := map[int]bool{}
	for _, p := range g.Processes {
		all += p.Memory
		if p.PID < 1 || p.PID > MaxPID || seen[p.PID] || p.Memory < 0 || all < 0 || all > maxBytes || len(p.Devices) > MaxGPUs {
			return fmt.Errorf("what its process %d held on GPUs is not possible", p.PID)
		}
		seen[p.PID] = true
		for _, uuid := range p.Devices {
			if !known[uuid] {
				return fmt.Errorf("its process %d used the GPU %.100q, which the container did not have", p.PID, uuid)
			}
		}
	}
	if err := g.checkPieces(known); err != nil {
		return err
	}
	if err := g.checkImports(); err != nil {
		return err
	}
	for _, m := range g.Mounts {
		if !path.IsAbs(m) {
			return fmt.Errorf("GPU files were mounted at %.100q", m)
		}
	}
	for _, n := range g.Nodes {
		if path.Clean(n.Path) != n.Path || !strings.HasPrefix(n.Path, "/dev/") {
			return fmt.Errorf("it had a GPU's device node at %.100q", n.Path)
		}
	}
	return nil
}

// checkImports returns an error where imports cannot be so.
func (g *GPU) checkImports() error {
	count := 0
	pieces := map[int]int{} // of each process
	for _, p := range g.Processes {
		pieces[p.PID] = len(p.Pieces)
		count += len(p.Imports)
	}
	for _, p := range g.Processes {
		for _, i := range p.Imports {
			of, known := pieces[i.Owner]
			if i.Memory < 0 || i.Memory > MaxPieces || i.Of < 0 || i.Host && i.Multicast || !i.Host && !i.Multicast && i.Of >= of || i.Of > MaxPieces || !known || count > MaxPieces {
				return fmt.Errorf("what its process %d has imported of process %d is not possible", p.PID, i.Owner)
			}
		}
	}
	return nil
}

// checkPieces returns an error that says what of the engine keeper cannot be so.
func (g *GPU) checkPieces(known map[string]bool) error {
	count := 0
	var all int64
	for _, p := range g.Processes {
		count += len(p.Pieces)
		if len(p.Fallback) > MaxFallback || p.Fallback != "" && (g.Engine != KeeperEngine || len(p.Pieces) > 0) {
			return fmt.Errorf("why the driver saved its process %d is not possible", p.PID)
		}
		var end uint64
		for _, piece := range p.Pieces {
			size := uint64(piece.Size)
			switch {
			case piece.Size <= 0 || size%pieceUnit != 0 || piece.Address%pieceUnit != 0,
				piece.Address < end || piece.Address > MaxAddress || size > MaxAddress-piece.Address,
				!known[piece.Device]:
				return fmt.Errorf("a piece of %d bytes at %#x of its process %d is not possible", piece.Size, piece.Address, p.PID)
			}
			end = piece.Address + size
		}
		if all += p.Handed(); all > maxBytes {
			return errors.New("more device memory was handed over than there can be")
		}
	}
	switch l := g.Library; {
	case count > MaxPieces:
		return fmt.Errorf("its processes had %d pieces of device memory", count)
	case count > 0 && (g.Engine != KeeperEngine || l == nil):
		return errors.New("device memory was handed over, and it does not say what by")
	case l != nil && (g.Engine != KeeperEngine || l.Digest.Validate() != nil || l.Digest.Algorithm() != digest.SHA256 || len(l.Version) > maxVersion):
		return errors.New("its library is not possible")
	}
	return nil
}
