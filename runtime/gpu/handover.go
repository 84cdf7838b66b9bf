package gpu

import (
	"context"
	"errors"
	"os"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// EngineAnnotation of a container chooses how its device memory is saved: "driver", or "keeper", by which large allocations are
// handed to a process that saves them. What it says wins over the configuration.
const EngineAnnotation = "io.cryo.gpu.engine"

// ManagedAnnotation is for a container with the engine keeper. Without it the library makes the managed memory (cudaMallocManaged) of the container's programs, which moves between host and GPUs. With [ManagedOnHost] that memory stays on
// the host, and the host and kernels use it at the same time. With [ManagedByDriver] the driver makes it, and refuses to save it.
const (
	ManagedAnnotation = "io.cryo.gpu.managed"
	ManagedByDriver   = "driver"
	ManagedOnHost     = "host"
)

// openKeeper starts a keeper and tells it its devices, by their UUIDs.
func openKeeper(ctx context.Context, devices []string) (*device.Keeper, error) {
	k, err := device.StartKeeper(ctx, device.KeeperOptions{})
	if err != nil {
		return nil, err
	}
	if err := k.Open(devices); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// given is a process whose memory is, or may be, with the engine.
type given struct {
	cudaProcess
	library  *library.Process // nil: hung up
	expected int              // pieces, when it was introduced
	pieces   []record.GPUPiece
	files    []*os.File // of the pieces
	released bool       // the process may have no memory any more
	recorded bool       // it was locked after that
	settled  bool       // it has memory of its own again, which needs no file
	mistaken bool       // its driver does not find what comes by files
	stood    bool       // the driver may have restored it before: a kernel of it that takes seconds may be ended if another process runs one on its devices, or makes a context there
	imports  []record.GPUImport
	added    []int  // to multicast objects among these, devices
	shares   bool   // it has memory of others, or they of it
	casts    bool   // it has multicast objects
	hosts    bool   // it has memory of the host with handles, or that is managed
	parted   bool   // that may have been taken away, and its gate opens when it is back
	apart    bool   // what it had of others may be gone, and not only unbound
	whole    bool   // its gate was found open
	alone    func() // waits until no other process has the memory but by files; nil: none has
	doubt    func() // says that the process may go on with the memory of the files; nil: it makes no difference
}

// bytes are what the pieces come to.
func (g *given) bytes() (all int64) {
	for _, p := range g.pieces {
		all += p.Size
	}
	return all
}

func (g *given) hangUp() {
	if g.library != nil {
		_ = g.library.HangUp() // it may have ended
		g.library = nil
	}
}

func (g *given) closeFiles() {
	closeFiles(g.files)
	g.files = nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
