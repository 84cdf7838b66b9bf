package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestGPU have containers with GPUs, by the fake driver of integration/fakecuda.

// sharedGPUs are two hosts with GPUs that have other UUIDs, and device nodes with other numbers, than the other's.
var sharedGPUs = struct {
	sync.Mutex
	a, b  *lab.Host
	image string // in the shared registry
}{}

// What the shared hosts have; tests that change it set it back.
var (
	gpusOfA = lab.GPUs{UVM: 511, Devices: []lab.GPU{{Minor: 0}, {Minor: 1}}}
	gpusOfB = lab.GPUs{UVM: 508, Driver: "580.173.01", Devices: []lab.GPU{{Minor: 4}, {Minor: 1}}}
)

// gpuPair is the two hosts, which are started for the first test that wants them, without orders.
func gpuPair(t *testing.T) (a, b *lab.Host) {
	t.Helper()
	s := &sharedGPUs
	s.Lock()
	defer s.Unlock()
	if s.a == nil {
		err := startGPUs(t)
		var missing *lab.MissingError
		if errors.As(err, &missing) && os.Getenv("CI") == "" {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	order(t, s.a)
	order(t, s.b)
	return s.a, s.b
}

func startGPUs(t *testing.T) (err error) {
	t.Helper()
	s, ctx := &sharedGPUs, context.WithoutCancel(t.Context())
	a, err := shared.lab.Host(ctx, "gpu-a", lab.HostOptions{GPUs: &gpusOfA, CryoConfig: byDriver})
	if err != nil {
		return err
	}
	b, err := shared.lab.Host(ctx, "gpu-b", lab.HostOptions{GPUs: &gpusOfB, CryoConfig: byDriver})
	if err != nil {
		return err
	}
	if err := a.ImportGPU(ctx); err != nil {
		return err
	}
	if s.image, err = a.Seed(ctx, shared.registry, lab.GPUImageName); err != nil {
		return err
	}
	s.a, s.b = a, b
	return b.Ctr(ctx, slices.Concat([]string{"images", "pull"}, shared.registry.CtrFlags(lab.Password), []string{s.image})...).Err()
}

// order gives a host's driver orders, which end with the test.
func order(t *testing.T, h *lab.Host, orders ...string) {
	t.Helper()
	if err := h.Order(orders...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Order(); err != nil {
			t.Error(err)
		}
	})
}

// obeyed tells whether a host's one order is being carried out, or has been.
func obeyed(t *testing.T, h *lab.Host) func() bool {
	return func() bool {
		done, _, err := h.Orders()
		if err != nil {
			t.Fatal(err)
		}
		return done > 0
	}
}

// carriedOut fails the test unless all orders of a host have been carried out.
func carriedOut(t *testing.T, h *lab.Host) {
	t.Helper()
	if _, open, err := h.Orders(); err != nil || open > 0 {
		t.Errorf("%d orders are left (%v)", open, err)
	}
}

// forceSeveral lets a container of several processes be checkpointed by any client.
var forceSeveral = []string{"--annotation", "io.cryo.gpu.force=gpu-several"}

// byDriver is the configuration of the hosts that tests share: a container's engine is the driver's, unless the test says otherwise.
const byDriver = "[gpu]\nengine = \"driver\"\n"

// oneGPU gives a container the first GPU of its host.
var oneGPU = []string{"--device", "nvidia.com/gpu=0"}

// startGPU starts fakeapp in the background and waits for its answer.
func startGPU(t *testing.T, h *lab.Host, id string, flags []string, args ...string) lab.Answer {
	t.Helper()
	startImage(t, h, sharedGPUs.image, id, flags, append([]string{"/fake/fakeapp", "--quiet"}, args...)...)
	return await(t, h, id)
}

// startSeveral is startGPU with several processes on one GPU, which any client may checkpoint.
func startSeveral(t *testing.T, h *lab.Host, id string, flags ...string) lab.Answer {
	t.Helper()
	return startGPU(t, h, id, slices.Concat(oneGPU, forceSeveral, flags), "--processes", fmt.Sprint(several), "--mib", "2")
}

// several is how many processes a container has where each of them is to fail.
const several = 2

// devicesOf are the UUIDs of the devices that each process of an answer of fakeapp holds memory on.
func devicesOf(t *testing.T, a lab.Answer) (all []string) {
	t.Helper()
	processes, _ := a.State["processes"].([]any)
	for _, p := range processes {
		p, _ := p.(map[string]any)
		devices, _ := p["devices"].([]any)
		for _, d := range devices {
			all = append(all, fmt.Sprint(d))
		}
	}
	if len(all) == 0 {
		t.Errorf("no devices in %+v", a)
	}
	return all
}

// unharmed ends the test unless a container's processes have their device memory and go on using it: nothing is locked or
// frozen, or was lost.
func unharmed(t *testing.T, h *lab.Host, id string, before lab.Answer) lab.Answer {
	t.Helper()
	a := answers(t, h, id)
	if a.Life != before.Life {
		t.Fatalf("%s is another than before", id)
	}
	first := ticks(a)
	eventually(t, id+" uses its GPUs", 30*time.Second, func() bool {
		a = answers(t, h, id)
		now := ticks(a)
		if len(now) != len(first) || len(now) == 0 {
			t.Fatalf("%s has %d processes, had %d", id, len(now), len(first))
		}
		for i := range now {
			if now[i] <= first[i] {
				return false
			}
		}
		return true
	})
	return a
}

// answers is await for no longer than a driver that is not locked takes.
func answers(t *testing.T, h *lab.Host, id string) lab.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := h.AwaitAnswer(ctx, id)
	if err != nil {
		_, status, _ := h.Task(t.Context(), id)
		t.Fatalf("%s is %q and does not answer: %v\noutput:\n%s", id, status, err, output(t, h, id))
	}
	if !a.OK {
		t.Fatalf("%s on %s is damaged: %s", id, h.Name, a.Error)
	}
	return a
}

// ticks are how often each process has counted on its device.
func ticks(a lab.Answer) (all []float64) {
	processes, _ := a.State["processes"].([]any)
	for _, p := range processes {
		p, _ := p.(map[string]any)
		n, _ := p["ticks"].(float64)
		all = append(all, n)
	}
	return all
}

// gone waits until a container's task has stopped or is gone.
func gone(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	eventually(t, "end of "+id, 30*time.Second, func() bool {
		_, status, err := h.Task(t.Context(), id)
		return err == nil && (status == "STOPPED" || status == "")
	})
}

// gpuSnapshot takes a snapshot of a new fakeapp on host a, which ends it, and brings it to host b. It goes with the test.
func gpuSnapshot(t *testing.T, flags []string, args ...string) (ref string, before lab.Answer) {
	t.Helper()
	a, b := gpuPair(t)
	id := name(t)
	ref = shared.registry.Reference("gpu/" + id + ":1")
	before = startGPU(t, a, id, flags, args...)
	forget(t, a, ref)
	forget(t, b, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	must(t, b.Cryo(t.Context(), "pull", ref, "--plain-http"))
	remove(t.Context(), a, id)
	return ref, before
}
