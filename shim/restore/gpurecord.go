package restore

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/gpu"
)

// FromRecord puts the shim's words into those of the format.
func FromRecord(r *gpu.Record) *image.GPU {
	g := &image.GPU{Engine: r.Engine, Driver: r.Driver, CUDA: r.CUDA, Forced: r.Forced, Devices: []image.GPUDevice{}, Processes: []image.GPUProcess{}}
	for _, d := range r.Devices {
		g.Devices = append(g.Devices, image.GPUDevice(d))
	}
	for _, p := range r.Processes {
		to := image.GPUProcess{PID: p.PID, Command: p.Command, Memory: p.Memory, Devices: p.Devices, Fallback: clipped(p.Fallback, image.MaxFallback)}
		for _, piece := range p.Pieces {
			to.Pieces = append(to.Pieces, image.GPUPiece(piece))
		}
		g.Processes = append(g.Processes, to)
	}
	for _, n := range r.Nodes {
		g.Nodes = append(g.Nodes, image.GPUNode(n))
	}
	if r.Library != nil {
		g.Library = &image.GPULibrary{Version: r.Library.Version, Digest: digest.Digest(r.Library.Digest)}
	}
	return g
}

// clipped gives the first bytes of a text.
func clipped(text string, most int) string {
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// checkRecord refuses images that say something of GPUs to the shim of which the config, by which everything was decided,
// says nothing, and the reverse.
func checkRecord(c image.Config, images string) error {
	r, err := gpu.ReadRecord(images)
	if err != nil {
		return err
	}
	if (r == nil) != (c.GPU == nil) {
		return fmt.Errorf("the snapshot's config and its images contradict each other about GPUs: %w", errdefs.ErrDataLoss)
	}
	if r == nil {
		return nil
	}
	if of := FromRecord(r); of.Engine != c.GPU.Engine || !slices.Equal(Pieces(of), Pieces(c.GPU)) || !reflect.DeepEqual(of.Library, c.GPU.Library) {
		return fmt.Errorf("the snapshot's config and its images contradict each other about the memory of GPUs: %w", errdefs.ErrDataLoss)
	}
	return nil
}

// Piece is a piece of device memory and the process that it belongs to.
type Piece struct {
	image.GPUPiece
	PID int
}

// Pieces are those of all processes, in the order in which they are numbered.
func Pieces(g *image.GPU) (all []Piece) {
	for _, p := range g.Processes {
		for _, piece := range p.Pieces {
			all = append(all, Piece{piece, p.PID})
		}
	}
	return all
}
