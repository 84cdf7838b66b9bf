package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// program is one of workloads/programs.py.
type program struct {
	name, about string
	start       []string // flags with which its container is started
	flags       []string // of the checkpoint
	forced      string   // the rule that a checkpoint by the driver overrides; the keeper has none
	refused     string   // by this rule, where the driver saves it; it runs on
	kept        bool     // and the keeper takes it
}

// programs are what people run, as the manuals of their libraries show it. Each is moved by both engines.
var programs = []program{
	{name: "loader-fork", about: "PyTorch, torchvision: training with mixed precision, pinned memory, 4 loader workers forked for each epoch"},
	{name: "loader-persistent", about: "the same, with workers that stay"},
	{name: "loader-forkserver", about: "the same, workers by a fork server"},
	{name: "loader-spawn", about: "the same, spawned workers"},
	{name: "trainer", about: "transformers, `Trainer`: 2 loader workers, gradient checkpointing"},
	{name: "generate", about: "transformers, `generate`: greedy and sampled"},
	{name: "accelerate", about: "accelerate: 2 loader workers"},
	{name: "lightning", about: "PyTorch Lightning: 2 loader workers"},
	{name: "sentences", about: "sentence-transformers"},
	{name: "diffusion", about: "a denoising loop in half precision"},
	{name: "compile", about: "`torch.compile`"},
	{name: "compile-overhead", about: "`torch.compile(mode=\"reduce-overhead\")`"},
	{name: "compile-autotune", about: "`torch.compile(mode=\"max-autotune\")`"},
	{name: "one-rank", about: "torch.distributed and DDP: one rank, NCCL", flags: []string{"--tcp-established"}},
	{name: "torchrun", about: "torchrun and DDP: one rank, NCCL", start: []string{"--annotation", "io.cryo.io-uring=refuse"}, flags: []string{"--tcp-established"}},
	{name: "tensor-queue", about: "torch.multiprocessing: CUDA tensors through a queue", refused: "gpu-several", kept: true},
	{name: "jax-training", about: "JAX, without preallocation"},
	{name: "numpyro", about: "NumPyro"},
	{name: "cupy", about: "CuPy"},
	{name: "gpytorch", about: "GPyTorch"},
	{name: "botorch", about: "BoTorch"},
	{name: "geometric", about: "PyTorch Geometric"},
	{name: "onnx", about: "ONNX Runtime 1.30 on the CPU beside PyTorch: it keeps a SQLite database open", refused: "mapped-lock"},
	{name: "pools", about: "`os.fork`, a pool of processes and a shell pipeline beside CUDA"},
	{name: "two-programs", about: "a supervisor with two GPU programs that share nothing", forced: "gpu-several"},
	{name: "web-server", about: "two workers of a web server, each with a model of its own", forced: "gpu-several", flags: []string{"--tcp-established"}},
	{name: "timm", about: "timm: a vision transformer in bfloat16, 4 loader workers"},
	{name: "lora", about: "PEFT: LoRA on a language model of transformers"},
	{name: "flax", about: "Flax and Optax"},
	{name: "equinox", about: "Equinox and Optax"},
	{name: "numba", about: "Numba: kernels, pinned memory"},
	{name: "opencv", about: "OpenCV on the CPU beside PyTorch"},
	{name: "kernel", about: "a kernel as Jupyter's: a TCP socket and a thread for each channel", flags: []string{"--tcp-established"}},
	{name: "expandable", about: "PyTorch with `expandable_segments:True`"},
}

// outcome is the program's line of the page for users.
func (p program) outcome() string {
	switch {
	case p.kept:
		return "works with the engine keeper; the driver's refuses it, `" + p.refused + "`"
	case p.refused != "":
		return fmt.Sprintf("refused, `%s`", p.refused)
	case p.forced != "":
		with := strings.Join(append([]string{"--force", p.forced}, p.flags...), " ")
		if len(p.flags) > 0 {
			return fmt.Sprintf("works with `%s` by the engine keeper, with `%s` by the driver", strings.Join(p.flags, " "), with)
		}
		return fmt.Sprintf("works by the engine keeper, and with `%s` by the driver", with)
	case len(p.start) > 0:
		return fmt.Sprintf("works with `%s`, started with `%s`", strings.Join(p.flags, " "), strings.Join(p.start, " "))
	case len(p.flags) > 0:
		return fmt.Sprintf("works with `%s`", strings.Join(p.flags, " "))
	}
	return "works"
}

// programCases tries each program by both engines.
func programCases() (all []testCase) {
	for _, p := range programs {
		about := p.about
		if flags := slices.Concat(p.start, p.flags); len(flags) > 0 {
			about += ", " + strings.Join(flags, " ")
		}
		all = append(all,
			testCase{"program-" + p.name, about, 1, 40, 8, func(ctx context.Context, b *bench, r *result) error { return b.program(ctx, r, p, b.start(r, p)) }},
			testCase{"keeper-program-" + p.name, about, 1, 40, 8, func(ctx context.Context, b *bench, r *result) error {
				p := p
				p.forced = ""
				if p.kept {
					p.refused = ""
				}
				return b.program(ctx, r, p, b.start(r, p).keeper())
			}})
	}
	return all
}

// start is a program's container. Small device memory is what most have: JAX, which takes three quarters of the device unless told otherwise, has a case of its own.
func (b *bench) start(r *result, p program) *container {
	c := b.python(r.Case, "programs.py", p.name)
	c.flags = slices.Concat(c.flags, p.start, []string{"--env", "XLA_PYTHON_CLIENT_PREALLOCATE=false", "--hostname", hostname})
	return c
}

// program moves a container, or wants it refused.
func (b *bench) program(ctx context.Context, r *result, p program, c *container) error {
	if p.refused == "" {
		flags := p.flags
		if p.forced != "" {
			flags = append([]string{"--force", p.forced}, flags...)
		}
		return b.journey(ctx, r, c, route{live: true, checkpoint: flags})
	}
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	return b.refused(ctx, r, c, []string{p.refused})
}
