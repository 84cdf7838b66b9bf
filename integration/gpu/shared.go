package main

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// overTCP is the flag of checkpoints of ranks, which speak to each other by TCP, too.
const overTCP = "--tcp-established"

// sharedCases are containers whose processes share device memory by descriptors. Those on two GPUs are refused while other programs use these.
func sharedCases(k keeperSettings) []testCase {
	nccl := func(way string) func(context.Context, *bench, *result) error {
		return func(ctx context.Context, b *bench, r *result) error {
			return b.handing(ctx, r, b.ranks(r.Case, way).keeper(), true, overTCP)
		}
	}
	rank := func(name string) func(context.Context, *bench, *result) error {
		return func(ctx context.Context, b *bench, r *result) error {
			return b.handing(ctx, r, b.rankProgram(r, name).keeper(), true, overTCP)
		}
	}
	throughout := func(name, about string) testCase {
		return testCase{"keeper-" + name + "-cycles", fmt.Sprintf("%s, %d checkpoints: the losses of the first epoch", about, min(50, k.cycles)), 2, 40 + int(k.time.Seconds()), 16,
			func(ctx context.Context, b *bench, r *result) error {
				return b.through(ctx, r, b.rankProgram(r, name).keeper(), min(50, k.cycles), k.time, overTCP)
			}}
	}
	return []testCase{
		{"keeper-shared", "two processes on a GPU that share memory by descriptors", 1, 40, 8, sharedBlocks(2)},
		{"keeper-shared-eight", "eight on a GPU", 1, 60, 8, sharedBlocks(8)},
		{"keeper-shared-host", "two processes that share memory of the host by descriptors", 1, 40, 8, func(ctx context.Context, b *bench, r *result) error {
			c := b.sharedBlocks(r, 2).keeper()
			c.program = append(c.program, "host")
			return b.journey(ctx, r, c, route{live: true})
		}},
		{"keeper-shared-both", "two processes, a GPU each, that share memory by descriptors", 2, 40, 8, sharedBlocks(2, 0, 1)},
		{"keeper-shared-exchanged", "the same, restored with the GPUs exchanged", 2, 60, 8, exchanged(func(b *bench, r *result) *container { return b.sharedBlocks(r, 2, 0, 1) })},
		{"keeper-nccl-default", "two ranks of NCCL over NVLink, its defaults but for multicast", 2, 90, 16, nccl("")},
		{"keeper-nccl-graph", "the same with all-reduces in a CUDA graph", 2, 90, 16, nccl("graph")},
		{"keeper-nccl-symmetric", "the same with PyTorch's symmetric memory", 2, 90, 16, nccl("symmetric")},
		{"keeper-nccl-host", "two ranks of NCCL that reach each other through the host (NCCL_P2P_DISABLE=1)", 2, 90, 16, func(ctx context.Context, b *bench, r *result) error {
			return b.handing(ctx, r, b.ranks(r.Case, "", "NCCL_P2P_DISABLE=1").keeper(), true, overTCP)
		}},
		{"keeper-nccl-15", "two ranks of NCCL with 15 GiB each", 2, 150, 140, nccl("15")},
		{"keeper-ddp", "torchrun: DDP with two loader workers a rank", 2, 90, 16, rank("ddp")},
		{"keeper-fsdp", "torchrun: FSDP with two loader workers a rank", 2, 90, 16, rank("fsdp")},
		throughout("ddp", "torchrun, DDP"),
		throughout("fsdp", "torchrun, FSDP"),
		{"keeper-custom", "torchrun: an all-reduce by a kernel of its own over legacy IPC, as vLLM's, launched and in a CUDA graph", 2, 90, 16, rank("custom")},
		{"keeper-custom-exchanged", "the same, restored with the GPUs exchanged", 2, 90, 16, exchanged(func(b *bench, r *result) *container { return b.rankProgram(r, "custom") }, overTCP)},
		{"keeper-tensor", "torchrun: a language model of 8 billion parameters, tensor-parallel: the same tokens", 2, 200, 80, rank("tensor")},
		{"keeper-pipeline", "torchrun: a pipeline of two stages", 2, 90, 16, rank("pipeline")},
		{"keeper-peer", "one process on two GPUs, copies from GPU to GPU with access (PyTorch)", 2, 60, 8, runPeer},
		{"keeper-device-map", "one process on two GPUs: accelerate's layout, copies from GPU to GPU", 2, 90, 16, runDeviceMap},
		{"keeper-nccl-steady", "all-reduces with and without the library", 2, 90, 16, runNCCLSteady},
		{"keeper-nccl-exchanged", "two ranks of NCCL, restored with the GPUs exchanged", 2, 90, 16, exchanged(func(b *bench, r *result) *container { return b.ranks(r.Case, "") }, overTCP)},
	}
}

// sharedBlocks is a container of processes that share memory, on the GPUs of the numbers given, or on one.
func (b *bench) sharedBlocks(r *result, processes int, devices ...int) *container {
	c := b.python(r.Case, "shared_blocks.py", strconv.Itoa(processes))
	c.members = processes
	if len(devices) > 0 {
		c.devices = devices
	}
	return c
}

func sharedBlocks(processes int, devices ...int) func(context.Context, *bench, *result) error {
	return func(ctx context.Context, b *bench, r *result) error {
		return b.handing(ctx, r, b.sharedBlocks(r, processes, devices...).keeper(), true)
	}
}

// exchanged restores a container with its two GPUs in each other's place.
func exchanged(make func(*bench, *result) *container, flags ...string) func(context.Context, *bench, *result) error {
	return func(ctx context.Context, b *bench, r *result) error {
		return b.journey(ctx, r, make(b, r).keeper(), route{checkpoint: flags, restore: []string{"--gpu", "0=1", "--gpu", "1=0"}})
	}
}

// rankProgram is a program that torchrun starts on two GPUs.
func (b *bench) rankProgram(r *result, name string) *container {
	c := b.several(b.python(r.Case, "rank_programs.py", name))
	c.flags = append(c.flags, "--annotation", "io.cryo.io-uring=refuse", "--hostname", hostname)
	return c
}

// through takes a container through checkpoints, of which each fifth ends it. After each, all its processes are verified.
func (b *bench) through(ctx context.Context, r *result, c *container, count int, most time.Duration, flags ...string) error {
	defer b.clear(ctx, c)
	defer b.home()()
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	quiet := r.quiet()
	began := time.Now()
	done, err := cycles(ctx, count, most, func(n int) error { return b.leaveOrMove(ctx, quiet, c, n, flags...) })
	r.Snapshot = quiet.Snapshot
	r.checked("%d cycles in %.0f s, of %d asked; %d of them ended and restored it", done, time.Since(began).Seconds(), count, len(r.Times["restore"]))
	if err != nil {
		return err
	}
	_, err = c.check(ctx, b.a, r, "after those")
	return err
}

// runPeer moves the program that the driver's engine refuses (two-gpus).
func runPeer(ctx context.Context, b *bench, r *result) error {
	c := b.python(r.Case, "torch_two_gpus.py").keeper()
	c.devices = []int{0, 1}
	return b.handing(ctx, r, c, true)
}

// runDeviceMap moves one process on two GPUs that have access to each other's memory.
func runDeviceMap(ctx context.Context, b *bench, r *result) error {
	c := b.rankProgram(r, "device-map").keeper()
	c.members = 1
	return b.handing(ctx, r, c, true)
}

// runNCCLSteady measures what ranks pay while nothing is saved.
func runNCCLSteady(ctx context.Context, b *bench, r *result) error {
	return b.steady(ctx, r, time.Second, 40*time.Second, func(id string) *container { return b.several(b.python(id, "nccl_steady.py")) }, (*container).keeper)
}
