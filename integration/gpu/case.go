package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// testCase is one thing to be shown.
type testCase struct {
	name    string
	about   string
	gpus    int
	seconds int // that it takes, roughly
	memory  int // GiB of host memory that it needs at its height
	run     func(ctx context.Context, b *bench, r *result) error
}

// cases lists all, in the order in which they run: those that tell most in the least time first.
func cases(s settings) []testCase {
	all := []testCase{
		{"shell", "no GPU: tries the runner", 0, 15, 1, runShell},
		{"shell-kill", "the same, with cryo and CRIU killed", 0, 30, 1, runShellKill},
		{"python", "no GPU: Python", 0, 20, 1, runPython},
	}
	var large []testCase
	for _, size := range s.sizes {
		if size < 8 {
			all = append(all, sized(size, s.live)...)
		} else {
			large = append(large, sized(size, s.live)...)
		}
	}
	all = append(all,
		testCase{"libraries", "CUDA graphs, streams, cuBLAS, cuDNN, cuFFT", 1, 30, 8, python("torch_libraries.py")},
		testCase{"training", "PyTorch trains: the losses of an undisturbed run", 1, 60, 8, runTraining},
		testCase{"several", "three processes on a GPU, --force gpu-several", 1, 25, 8, runSeveral},
		testCase{"managed", "managed memory: refused, unharmed", 1, 10, 4, runManaged},
		testCase{"managed-empty-pool", "a pool of managed memory of which nothing is allocated: refused, unharmed", 1, 10, 4, runEmptyPool},
		testCase{"long", "kernel past the deadline: refused; taken with a longer one", 1, 35, 4, runLong},
		testCase{"interrupt", "interruptible kernels: locked within a second", 1, 120, 4, runInterrupt},
		testCase{"stock", "checkpoint and restore by ctr", 1, 15, 4, runStock},
		testCase{"kill", "cryo, helper, CRIU killed: the container runs on", 1, 60, 24, runKill},
		testCase{"nvml", "NVML beside CUDA", 1, 40, 8, runNVML},
		testCase{"nvml-alone", "NVML in a process without CUDA, beside one with it", 1, 40, 8, runNVMLAlone},
		testCase{"nvml-events", "NVML's event sets, and a child forked with NVML open: refused, unharmed", 1, 20, 4, runNVMLEvents},
		testCase{"keeper-nvml", "NVML beside CUDA, and without it", 1, 60, 8, runKeeperNVML},
		testCase{"keeper-nvml-only", "NVML in a container without CUDA", 1, 30, 4, runKeeperNVMLOnly},
		testCase{"triton", "Triton", 1, 25, 8, python("triton_kernels.py")},
		testCase{"cupy", "CuPy", 1, 25, 8, python("cupy_arrays.py")},
		testCase{"jax", "JAX", 1, 30, 12, python("jax_functions.py")},
		testCase{"jax-preallocated", "JAX with three quarters of the device preallocated", 1, 200, 90, python("jax_preallocated.py")},
		testCase{"keeper-jax-preallocated", "JAX with three quarters of the device preallocated", 1, 120, 90, runKeeperPreallocated},
		testCase{"inference", "language model, 8 billion parameters: the same tokens", 1, 110, 56, runInference},
		testCase{"keeper-inference", "language model, 8 billion parameters: the same tokens", 1, 220, 56, runKeeperInference},
	)
	all = append(all, managedCases()...)
	all = append(all, programCases()...)
	all = append(all, keeperCases(s.keeper)...)
	all = append(all, startCases()...)
	all = append(all, sharedCases(s.keeper)...)
	all = append(all,
		testCase{"keeper-group", "torchrun: DDP over Gloo, two hosts in step, restored with the hosts exchanged", 1, 120, 16, runGroup},
		testCase{"other-gpu", "onto the other GPU, and back", 2, 70, 8, runOtherGPU},
		testCase{"two-gpus", "one process copies between two GPUs: refused, unharmed", 2, 40, 8, runTwoGPUs},
		testCase{"nccl-default", "two ranks of NCCL, its defaults: refused, unharmed", 2, 60, 16, runNCCLDefault},
		testCase{"nccl", "two ranks of NCCL that share nothing", 2, 110, 16, runNCCL},
		testCase{"keeper-other-gpu", "onto the other GPU, and back", 2, 70, 8, runKeeperOtherGPU},
		testCase{"keeper-nccl", "two ranks of NCCL that share nothing", 2, 60, 16, runKeeperNCCL},
		testCase{"keeper-two-gpus", "one process on two GPUs, without access between them", 2, 40, 8, runKeeperTwoGPUs},
	)
	return append(all, large...)
}

// sized are the cases of one size. From 40 GiB on, snapshots would not fit beside each other if their memory could not be
// compressed: device memory is in the processes, in CRIU's images, in the snapshot, in the registry and on the second host in turn.
func sized(size, live int) []testCase {
	pattern, rounds, memory := "random", 5, 3*size+8
	switch {
	case size >= 40:
		pattern, rounds, memory = "regular", 2, 2*size+12
	case size >= 8:
		rounds = 2
	}
	leave := size <= live
	seconds := func(base, each int) int { return base + each*size }
	each := 3 + 7*rounds/2 // of the measured one
	if pattern == "regular" {
		each -= 3 // what is written and sent is small
	}
	measure := func(ctx context.Context, b *bench, r *result) error {
		return b.measure(ctx, r, b.allocation(r, "plain", size, pattern), rounds, leave)
	}
	plain := func(mode string) func(context.Context, *bench, *result) error {
		return func(ctx context.Context, b *bench, r *result) error {
			return b.journey(ctx, r, b.allocation(r, mode, size, pattern), route{live: leave})
		}
	}
	bare := func(ctx context.Context, b *bench, r *result) error { return b.process(ctx, r, size, pattern) }
	hold := func(ctx context.Context, b *bench, r *result) error { return b.keepers(ctx, r, size, 3) }
	keeper := func(ctx context.Context, b *bench, r *result) error {
		return b.beside(ctx, r, func(id string) *container {
			return b.container(id, "/gpu/app", "--mode", "plain", "--gib", strconv.Itoa(size), "--pattern", pattern)
		}, leave)
	}
	name := func(mode string) string { return fmt.Sprintf("%s-%d", mode, size) }
	return []testCase{
		{name("plain"), fmt.Sprintf("cudaMalloc, %d GiB", size), 1, seconds(20, each), memory, measure},
		{name("async"), fmt.Sprintf("cudaMallocAsync, %d GiB", size), 1, seconds(10, 5), memory, plain("async")},
		{name("pinned"), fmt.Sprintf("cudaMalloc, %d GiB, and pinned host memory", size), 1, seconds(10, 6), memory + 4, plain("pinned")},
		{name("keeper-link"), fmt.Sprintf("from keeper to keeper, %d GiB", size), 1, seconds(10, 2), 4, hold},
		{name("keeper"), fmt.Sprintf("cudaMalloc, %d GiB", size), 1, seconds(20, 9), memory, keeper},
		{name("bare"), fmt.Sprintf("by hand, outside of containers, %d GiB", size), 1, seconds(10, 3), 2*size + 8, bare},
	}
}

// choose gives the cases named, in the order of the list. Those to try the runner must be named.
func choose(all []testCase, names []string) ([]testCase, error) {
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c testCase) bool { return c.name == name }) {
			return nil, fmt.Errorf("no case is called %s; --list lists them", name)
		}
	}
	return slices.DeleteFunc(all, func(c testCase) bool {
		if len(names) == 0 {
			return c.gpus == 0
		}
		return !slices.Contains(names, c.name)
	}), nil
}

func needGPU(chosen []testCase) bool {
	return slices.ContainsFunc(chosen, func(c testCase) bool { return c.gpus > 0 })
}

func printCases(all []testCase) {
	total := map[int]int{}
	for _, c := range all {
		fmt.Printf("%-16s %d GPUs  %4d s  %3d GiB  %s\n", c.name, c.gpus, c.seconds, c.memory, c.about)
		total[c.gpus] += c.seconds
	}
	fmt.Printf("about %d s with one GPU, %d s more with two\n%s\n", total[1], total[2], strings.TrimSpace(`
The time of a case is a guess; it gets twice that and a minute.`))
}
