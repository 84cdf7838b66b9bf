package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"time"
)

// keeperSettings are the flags of the cases of the engine keeper.
type keeperSettings struct {
	cycles  int           // how often a checkpoint is taken in the cases of many
	time    time.Duration // in which they do as many of them as they can
	sizes   []int         // GiB of device memory whose freezes are compared
	full    int           // GiB of device memory of which a device has no room for a copy
	random  int           // of which so many cannot be compressed
	percent int           // of a device that a server's cache takes
	layers  int           // of the model of which a second snapshot is taken
}

// flags declares them; what it gives is called when they have been parsed.
func (k *keeperSettings) flags() (parsed func()) {
	flag.IntVar(&k.cycles, "cycles", 200, "checkpoints in a case of many, with the container left running, and as many that end it and are restored")
	flag.DurationVar(&k.time, "cycle-time", 100*time.Second, "in which a case of many checkpoints does as many of them as it can")
	flag.IntVar(&k.percent, "server-percent", 30, "of the device's memory that a server's cache takes in keeper-vllm")
	flag.IntVar(&k.layers, "layers", 4, "of the model in keeper-second: 2 GiB, and 0.4 more each")
	flag.IntVar(&k.full, "full-gib", 100, "GiB of device memory in keeper-full, of which the device must have no room for a copy; a GiB more is written all the time")
	flag.IntVar(&k.random, "full-random", 24, "of which so many GiB cannot be compressed: the store, the registry and the second host have them in memory by turns, two of them at once")
	sizes := flag.String("freeze-sizes", "1,4,16,60,100", "GiB of device memory whose freezes keeper-freeze compares, separated by commas")
	return func() { k.sizes = gibibytesOf(*sizes) }
}

// keeperCases are those in which containers ask for the engine keeper.
func keeperCases(k keeperSettings) []testCase {
	whole := int(k.time.Seconds())
	training := min(50, k.cycles)
	return []testCase{
		{"conformance", "each call of the memory API, with the library and without", 1, 120, 8, runConformance},
		{"keeper-several", "three processes on a GPU", 1, 25, 8, runKeeperSeveral},
		{"keeper-async", "cudaMalloc and cudaMallocAsync's pool", 1, 15, 8, runKeeperAsync},
		{"keeper-annotation", "restored by an annotation, onto the GPU that ctr gives", 1, 40, 12, runKeeperAnnotation},
		{"keeper-limits", "kernels with much local memory and deep stacks", 1, 40, 16, runKeeperLimits},
		{"keeper-libraries", "CUDA graphs, streams, cuBLAS, cuDNN, cuFFT", 1, 25, 8, runKeeperLibraries},
		{"keeper-vllm", fmt.Sprintf("%d %% of the device, CUDA graphs, expandable segments", k.percent), 1, 75, 16,
			func(ctx context.Context, b *bench, r *result) error { return b.servers(ctx, r, k.percent) }},
		{"keeper-second", "second snapshot, 100 requests later: at most 5 % new", 1, 60, 16,
			func(ctx context.Context, b *bench, r *result) error { return b.second(ctx, r, k.layers) }},
		{"keeper-freeze", "the freeze does not grow with device memory", 1, 90, 16,
			func(ctx context.Context, b *bench, r *result) error { return b.freezes(ctx, r, k.sizes) }},
		{"keeper-full", fmt.Sprintf("no room for a copy of %d GiB, of which next to nothing changes: frozen for at most %.1f s", k.full, fullMost), 1, 60 + 2*k.full, 16 + 3*k.random + k.full/8,
			func(ctx context.Context, b *bench, r *result) error { return b.full(ctx, r, k.full, k.random) }},
		{"keeper-steady", "calls and steps with and without the library", 1, 80, 8, runKeeperSteady},
		{"keeper-stress", fmt.Sprintf("eight busy threads, %d checkpoints: nothing grows", k.cycles), 1, whole + 20, 8,
			func(ctx context.Context, b *bench, r *result) error { return b.stress(ctx, r, k.cycles, k.time) }},
		{"keeper-training", fmt.Sprintf("PyTorch trains, %d checkpoints: the losses of an undisturbed run", training), 1, whole + 40, 8,
			func(ctx context.Context, b *bench, r *result) error { return b.trainThrough(ctx, r, training, k.time) }},
	}
}

// byKeeper refuses a checkpoint in which a process goes by the driver.
var byKeeper = []string{"--gpu-engine", "keeper"}

// keeper is a container that asks for the engine keeper.
func (c *container) keeper() *container {
	c.flags = append(c.flags, "--annotation", "io.cryo.gpu.engine=keeper")
	return c
}

func runKeeperSeveral(ctx context.Context, b *bench, r *result) error {
	c := b.container(r.Case, "/gpu/app", "--gib", "1", "--processes", "3").keeper()
	c.members = 3
	c.flags = append(c.flags, "--annotation", "io.cryo.gpu.force=gpu-several")
	return b.handing(ctx, r, c, true)
}

func runKeeperLibraries(ctx context.Context, b *bench, r *result) error {
	return b.handing(ctx, r, b.python(r.Case, "torch_libraries.py").keeper(), true)
}

func runKeeperPreallocated(ctx context.Context, b *bench, r *result) error {
	return b.handing(ctx, r, b.python(r.Case, "jax_preallocated.py").keeper(), true)
}

// runKeeperAsync wants both engines to have a part in one process.
func runKeeperAsync(ctx context.Context, b *bench, r *result) error {
	const gib = 2 // half of it of the pool
	c := b.container(r.Case, "/gpu/app", "--mode", "mixed", "--gib", strconv.Itoa(gib)).keeper()
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	s, err := b.sharing(ctx, r, c)
	if err != nil {
		return err
	}
	r.checked("%s", s)
	if half := int64(gib << 29); s.handed < half || s.held-s.handed < half {
		return fmt.Errorf("each engine is to have %d MiB at least, but %s", half>>20, s)
	}
	return b.move(ctx, r, c, route{checkpoint: byKeeper})
}

// sharing takes a checkpoint that leaves a container running, and says what went by which engine.
func (b *bench) sharing(ctx context.Context, r *result, c *container) (s share, err error) {
	ref := b.registry.Reference("gpu/" + c.id + ":live")
	if _, err := b.checkpoint(ctx, r, c, ref, "live", "--leave-running"); err != nil {
		return s, err
	}
	if s, err = b.share(ctx, ref); err != nil {
		return s, err
	}
	if _, err := c.check(ctx, b.a, r, "left running"); err != nil {
		return s, err
	}
	return s, b.a.Cryo(ctx, "rm", ref).Err()
}
