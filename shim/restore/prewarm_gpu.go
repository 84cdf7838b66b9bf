package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/worker"
)

// preload loads a snapshot's device memory ahead of a restore. nil: it is not asked for.
type preload struct {
	begin *gpu.PrewarmedBeginning
	gpus  GPUOptions
	info  gpu.Prewarmed
	again bool // it is loaded already
}

// planPreload decides where the snapshot's device memory goes, and makes room there. No other process does so until it is closed.
func planPreload(ctx context.Context, s *store.Store, snapshot *image.Snapshot, name string, o PrewarmOptions, r *PrewarmResult) (_ *preload, err error) {
	if !o.OnGPU {
		return nil, nil
	}
	g := snapshot.Config.GPU
	if why := nothingToLoad(g); why != "" {
		return nil, failure.New(errdefs.ErrFailedPrecondition,
			"leave --gpu out; device memory can be kept loaded of containers that hand it over, which they do unless they were made with the engine driver, or inspect says why",
			"prewarm %s --gpu: there is nothing to keep loaded: %s", store.Familiar(name), why)
	}
	var spec specs.Spec
	if err := json.Unmarshal(snapshot.Config.Spec, &spec); err != nil {
		return nil, fmt.Errorf("read the snapshot's runtime specification: %w: %w", err, errdefs.ErrDataLoss)
	}
	l := &preload{gpus: o.GPUs}
	if l.begin, err = gpu.NewPrewarmedDir(s.Root()).Begin(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	p, err := PlanGPUs(ctx, o.GPU, g, &spec, o.GPUs)
	if err != nil {
		return nil, err
	}
	if err := gpuMisfit(snapshot.Config, p.Facts); err != nil {
		return nil, err
	}
	l.info = gpu.Prewarmed{Reference: name, Digest: snapshot.Descriptor.Digest.String(), Pieces: gpu.Pieces(g, p.Places), Facts: p.Known}
	if l.again, err = l.begin.Again(l.info); err != nil || l.again {
		return l, err
	}
	each, _ := g.Need()
	rest, loads := map[string]int64{}, l.info.Bytes()
	for i, d := range p.Places[:min(len(p.Places), len(each))] {
		rest[d.UUID] = max(0, each[i]-loads[d.UUID])
	}
	removed, err := l.begin.Room(l.info, rest, o.GPUBudget)
	for _, i := range removed {
		r.Removed = append(r.Removed, PrewarmedSnapshot{Reference: i.Reference, Digest: i.Digest, Created: i.Created, Used: i.Used, GPUs: gpusOf(i)})
	}
	return l, err
}

// gpuMisfit is what the rules about GPUs have against this host, but for what is free, which room is made for.
func gpuMisfit(c image.Config, machine host.FitGPUs) error {
	v := host.CheckFit(c, host.FitTarget{PathExists: ExistsOr(""), GPUs: machine})
	v.Findings = slices.DeleteFunc(v.Findings, func(f host.FitFinding) bool { return !strings.HasPrefix(f.Rule, "gpu-") || f.Rule == "gpu-memory" })
	return v.Err()
}

// nothingToLoad returns why a snapshot has no device memory of its own; empty: it has.
func nothingToLoad(g *image.GPU) string {
	switch {
	case g == nil:
		return "it has no GPUs"
	case len(g.Pieces()) > 0:
		return ""
	case g.Engine != image.KeeperEngine:
		return "the driver has saved its device memory, into the memory of its processes"
	}
	for _, p := range g.Processes {
		if p.Fallback != "" {
			return fmt.Sprintf("process %d (%s) has handed nothing over: %s", p.PID, p.Command, p.Fallback)
		}
	}
	return "its processes had no device memory to hand over"
}

// load loads it, verified, and has it kept.
func (l *preload) load(ctx context.Context, s *store.Store, snapshot *image.Snapshot) (err error) {
	if l == nil || l.again {
		return nil
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the keeper was killed for that
		}
	}()
	h, err := device.StartKeeper(ctx, device.KeeperOptions{Path: device.ProgramIn(l.gpus.Programs)})
	if err != nil {
		return err
	}
	defer h.Close()
	defer context.AfterFunc(ctx, func() { _ = h.Kill() })() // it may have ended
	if err := h.Open(device.DevicesOf(l.info.Pieces)); err != nil {
		return err
	}
	memory, err := image.OpenDevices(ctx, s, snapshot.Descriptor) // while the driver is initialised
	if err != nil {
		return err
	}
	defer memory.Close()
	files, err := h.Make(ctx, l.info.Pieces)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err := worker.LoadInto(ctx, h.Receive, memory); err != nil {
		return err
	}
	program := "" // the running one
	if dir := l.gpus.Programs; dir != "" {
		program = filepath.Join(dir, "cryo")
	}
	// Its contexts take room, and what it has mapped. The descriptors have the memory.
	if err := h.Close(); err != nil {
		return err
	}
	return l.begin.Keep(ctx, program, l.info, files)
}

func (l *preload) close() {
	if l != nil {
		_ = l.begin.Close() // a lock
	}
}
