package gpu

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/keeper"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// EngineAnnotation of a container chooses how its device memory is saved: "driver", or "keeper", by which large allocations are
// handed to a process that saves them. What it says wins over the configuration.
const EngineAnnotation = "io.cryo.gpu.engine"

// Owner is what the engine asks of the library in the process that owns memory; see [library.Process], which is the one there is.
type Owner interface {
	Hello() (library.Hello, error)
	Close(ctx context.Context, deadline time.Duration) error
	Table() ([]spec.GPUPiece, error)
	Give() ([]*os.File, error)
	Release() error
	Attach(ctx context.Context, pieces []spec.GPUPiece, files []*os.File) error
	Own(ctx context.Context) (int, error)
	Make(ctx context.Context, pieces []spec.GPUPiece, n int) (*os.File, error)
	Filled() error
	Open() error
	HangUp() error
	Leave(ctx context.Context)
}

var _ Owner = (*library.Process)(nil)

// DialLibrary wakes the library in a process.
func DialLibrary(ctx context.Context, pid int) (Owner, error) {
	p, err := library.Dial(ctx, pid)
	if err != nil {
		return nil, err // not p, which would be an interface that is not nil
	}
	return p, nil
}

// Keeper is the process that has device memory while its owners have not; see [keeper.Client], which is the one there is.
type Keeper interface {
	Open(devices []string) error
	Ready(ctx context.Context) error
	Hold(ctx context.Context, pieces []spec.GPUPiece, files []*os.File) error
	Room(ctx context.Context, others []spec.GPUPiece, spare int64) (bool, error)
	Send(ctx context.Context, peer *os.File) error
	Make(ctx context.Context, pieces []spec.GPUPiece) ([]*os.File, error)
	Copy(ctx context.Context, p spec.GPUPiece, from, to *os.File) error
	Receive(ctx context.Context, peer *os.File) error
	LetGo(ctx context.Context) error
	Kill() error
	Close() error
}

var _ Keeper = (*keeper.Client)(nil)

// StartKeeper starts the keeper that belongs to this program. It initialises the driver, and waits to be told its devices.
func StartKeeper(ctx context.Context) (Keeper, error) {
	c, err := keeper.Start(ctx, keeper.Options{})
	if err != nil {
		return nil, err // not c, which would be an interface that is not nil
	}
	return c, nil
}

// Handover is how device memory leaves its processes without going through theirs.
type Handover struct {
	// Start starts a keeper; [StartKeeper].
	Start func(ctx context.Context) (Keeper, error)
	// Peer gives a connection, which package ring speaks on, to who takes the memory. It is asked when the record lies beside
	// the images.
	Peer func() (*os.File, error)
}

// open starts a keeper and tells it its devices, by their UUIDs.
func (h *Handover) open(ctx context.Context, devices []string) (Keeper, error) {
	k, err := h.Start(ctx)
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
	library  Owner // nil: hung up
	expected int   // pieces, when it was introduced
	pieces   []spec.GPUPiece
	files    []*os.File // of the pieces
	released bool       // the process may have no memory any more
	recorded bool       // it was locked after that
	settled  bool       // it has memory of its own again, which needs no file
	mistaken bool       // its driver does not find what comes by files
	alone    func()     // waits until nobody else has the memory but by files; nil: nobody has
	doubt    func()     // says that the process may go on with the memory of the files; nil: nobody minds
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
