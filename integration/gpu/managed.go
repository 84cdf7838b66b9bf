package main

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// managedCases are those in which the library makes managed memory.
func managedCases() []testCase {
	return []testCase{
		{"keeper-managed", "managed memory by the library: stencil, graph, variables, advice, a pool, a program's own handler for SIGSEGV; the same compiled by the driver; a program's own kernels; CuPy; Numba", 1, 140, 8, runKeeperManaged},
		{"keeper-managed-large", fmt.Sprintf("%d GiB of managed memory on a device that has %d left", managedLarge, managedLeft), 1, 120, 40, runKeeperManagedLarge},
		{"keeper-managed-cycles", fmt.Sprintf("managed memory, %d checkpoints, each fifth of which moves it", managedCycles), 1, 120, 8, runKeeperManagedCycles},
		{"keeper-managed-steady", "managed memory of the library's beside the driver's: kernels, the host after the device, the device after the host, stencils", 1, 60, 12, runKeeperManagedSteady},
	}
}

// GiB of managed memory that do not fit on a device, and that another container leaves of it.
const managedLarge, managedLeft = 9, 6

const managedCycles = 20

func runKeeperManaged(ctx context.Context, b *bench, r *result) error {
	for _, c := range []*container{
		b.container(r.Case, "/gpu/managed"),
		b.container(r.Case+"-compiled", "/gpu/managed-compiled"),
		b.container(r.Case+"-app", "/gpu/app", "--gib", "1", "--mode", "managed"),
		b.python(r.Case+"-cupy", "managed_arrays.py"),
		b.python(r.Case+"-numba", "managed_numba.py"),
	} {
		if err := b.handing(ctx, r, c.keeper(), true); err != nil {
			return err
		}
	}
	return nil
}

// runKeeperManagedLarge has another container take the device's memory but for a part.
func runKeeperManagedLarge(ctx context.Context, b *bench, r *result) error {
	facts, err := b.facts(ctx)
	if err != nil {
		return err
	}
	other := b.container(r.Case+"-other", "/gpu/app", "--gib", strconv.Itoa(int(facts.Devices[0].Free>>30)-managedLeft))
	defer b.clear(ctx, other)
	if err := other.start(ctx); err != nil {
		return err
	}
	return b.handing(ctx, r, b.container(r.Case, "/gpu/managed", "--gib", strconv.Itoa(managedLarge)).keeper(), true)
}

func runKeeperManagedCycles(ctx context.Context, b *bench, r *result) error {
	return b.through(ctx, r, b.container(r.Case, "/gpu/managed").keeper(), managedCycles, 4*time.Minute)
}

func runKeeperManagedSteady(ctx context.Context, b *bench, r *result) error {
	return b.steady(ctx, r, time.Second, 45*time.Second, func(id string) *container { return b.container(id, "/gpu/managed", "--still") }, (*container).keeper)
}
