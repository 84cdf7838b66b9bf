package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cryo-project/cryo/image/record"
)

// beside takes a container that asks for the engine keeper to the second host, and then one that does not: what each takes stands beside
// the other, from one run on one machine.
func (b *bench) beside(ctx context.Context, r *result, with func(id string) *container, live bool) error {
	c := with(r.Case)
	c.flags = append(c.flags, "--annotation", "io.cryo.gpu.engine=keeper")
	if err := b.handing(ctx, r, c, live); err != nil {
		return err
	}
	other, err := r.byDriver(func(other *result) error {
		return b.journey(ctx, other, with(other.Case), route{live: live, elsewhere: true})
	})
	if err != nil {
		return err
	}
	for _, what := range slices.Sorted(maps.Keys(other.Times)) {
		for _, seconds := range other.Times[what] {
			r.took("driver."+what, seconds)
		}
	}
	return nil
}

// byDriver has do the same done by the driver's engine, and tells what was checked then. The times are the other result's.
func (r *result) byDriver(do func(other *result) error) (*result, error) {
	other := &result{Case: r.Case + "-driver", Times: map[string][]float64{}}
	if err := do(other); err != nil {
		return nil, fmt.Errorf("by the driver: %w", err)
	}
	for _, line := range other.Checks {
		r.checked("by the driver: %s", line)
	}
	return other, nil
}

// handing is the journey of a container that hands its memory over, and makes sure that it does. The flags are further ones of its checkpoints.
func (b *bench) handing(ctx context.Context, r *result, c *container, live bool, flags ...string) error {
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	return b.handOver(ctx, r, c, live, flags...)
}

// handOver is the journey from where the container has been started, with which it is on the second host.
func (b *bench) handOver(ctx context.Context, r *result, c *container, live bool, flags ...string) error {
	ref := b.registry.Reference("gpu/" + c.id + ":live")
	if live {
		if _, err := b.checkpoint(ctx, r, c, ref, "live", slices.Concat([]string{"--leave-running"}, flags)...); err != nil {
			return err
		}
		if err := b.handed(ctx, r, c, ref); err != nil {
			return err
		}
		if _, err := c.check(ctx, b.a, r, "left running"); err != nil {
			return err
		}
		if err := b.a.Cryo(ctx, "rm", ref).Err(); err != nil {
			return err
		}
	}
	if err := b.move(ctx, r, c, route{checkpoint: slices.Concat(byKeeper, flags), elsewhere: true}); err != nil {
		return err
	}
	ref = b.registry.Reference("gpu/" + c.id + ":end")
	if err := b.prewarmed(ctx, r, c, ref, "prewarmed", nil); err != nil {
		return err
	}
	return b.prewarmed(ctx, r, c, ref, "prewarmed.eager", nil, "--eager")
}

// prewarmed restores the snapshot in the second host's store once more, with its device memory on the GPU already, and makes sure that it was used. devices are flags
// that say which GPU that is.
func (b *bench) prewarmed(ctx context.Context, r *result, c *container, ref, what string, devices []string, flags ...string) error {
	c.remove(ctx, b.b)
	prewarm := b.b.Cryo(ctx, append([]string{"prewarm", "--gpu", ref, "--plain-http"}, devices...)...)
	if prewarm.Err() != nil {
		return prewarm.Err()
	}
	r.took(what+".prewarm", prewarm.Elapsed.Seconds())
	r.checked("%s", strings.TrimSpace(prewarm.Stdout))
	said, all, err := b.returned(ctx, r, c, ref, "restored from what was prewarmed", slices.Concat(devices, flags)...)
	if err != nil {
		return err
	}
	if !said.GPUPrewarmed {
		return fmt.Errorf("device memory was loaded, although it was prewarmed")
	}
	r.took(what+".restore", said.Seconds)
	r.took(what+".restore.all", all.Seconds())
	return nil
}

// handed makes sure that memory of each of a container's GPUs was handed over, and writes down how much.
func (b *bench) handed(ctx context.Context, r *result, c *container, ref string) error {
	s, err := b.share(ctx, ref)
	switch {
	case err != nil:
		return err
	case s.fallback != "":
		return fmt.Errorf("went by the driver: %s", s.fallback)
	case s.handed == 0:
		return fmt.Errorf("nothing was handed over")
	}
	for _, n := range c.devices {
		if s.from[b.machine.GPUs[n].UUID] == 0 {
			return fmt.Errorf("nothing of GPU %d was handed over: %s", n, s)
		}
	}
	r.checked("%s", s)
	return nil
}

// share is how much of a snapshot's device memory went by which engine, bytes.
type share struct {
	handed, held int64
	from         map[string]int64 // what was handed over, by the device's UUID
	fallback     string           // why processes went by the driver, if any did for a reason
}

func (s share) String() string {
	text := fmt.Sprintf("%d MiB were handed over, of %d on the devices", s.handed>>20, s.held>>20)
	if len(s.from) > 1 {
		for _, device := range slices.Sorted(maps.Keys(s.from)) {
			text += fmt.Sprintf("; %d of %s", s.from[device]>>20, device)
		}
	}
	if s.fallback != "" {
		text += "; by the driver: " + s.fallback
	}
	return text
}

// share looks into a snapshot.
func (b *bench) share(ctx context.Context, ref string) (s share, err error) {
	run := b.a.Cryo(ctx, "inspect", ref, "--json")
	if run.Err() != nil {
		return s, run.Err()
	}
	var snapshot struct {
		Config struct {
			GPU struct {
				Processes []struct {
					PID      int
					Memory   int64
					Pieces   []record.GPUPiece
					Fallback string
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(run.Stdout), &snapshot); err != nil {
		return s, fmt.Errorf("read what cryo inspect prints: %w", err)
	}
	s.from = map[string]int64{}
	for _, p := range snapshot.Config.GPU.Processes {
		if p.Fallback != "" {
			s.fallback = strings.TrimPrefix(fmt.Sprintf("%s; process %d: %s", s.fallback, p.PID, p.Fallback), "; ")
		}
		s.held += p.Memory
		for _, piece := range p.Pieces {
			s.handed += piece.Size
			s.from[piece.Device] += piece.Size
		}
	}
	return s, nil
}

func runKeeperInference(ctx context.Context, b *bench, r *result) error {
	return b.beside(ctx, r, func(id string) *container { return b.python(id, "torch_inference.py") }, true)
}
