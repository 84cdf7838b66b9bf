package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestGPUKeeperEngine have containers that hand their device memory over.

// handing makes a container one of those, with the first GPU of its host.
var handing = append(slices.Clone(oneGPU), "--annotation", "io.cryo.gpu.engine=keeper")

// blocks are allocations of which some are handed over, in several pieces, and some are too small for that.
const blocks = "1,2,3,5,1"

// pieces are what processes of a snapshot have handed over, by what inspect says: bytes, and why some have not.
func pieces(t *testing.T, h *lab.Host, ref string) (bytes float64, fallbacks string) {
	t.Helper()
	gpu, _ := decoded(t, h.Cryo(t.Context(), "inspect", ref, "--json"))["config"].(map[string]any)["gpu"].(map[string]any)
	if gpu["engine"] != "keeper" {
		t.Errorf("%s is by the engine %v", ref, gpu["engine"])
	}
	processes, _ := gpu["processes"].([]any)
	for _, p := range processes {
		p, _ := p.(map[string]any)
		list, _ := p["pieces"].([]any)
		for _, piece := range list {
			size, _ := piece.(map[string]any)["size"].(float64)
			bytes += size
		}
		if why, _ := p["fallback"].(string); why != "" {
			fallbacks += why + "\n"
		}
	}
	return bytes, fallbacks
}

// handedOver fails the test unless a snapshot has at least so many bytes that were handed over, and nothing went by the driver.
func handedOver(t *testing.T, h *lab.Host, ref string, least float64) {
	t.Helper()
	if bytes, fallbacks := pieces(t, h, ref); bytes < least || fallbacks != "" {
		t.Errorf("%s has %.0f bytes that were handed over, want %.0f; fallbacks: %s", ref, bytes, least, fallbacks)
	}
}

// alone fails the test if any process of an operation is left on a host.
func alone(t *testing.T, h *lab.Host) {
	t.Helper()
	eventually(t, "no helper, keeper or loader", 30*time.Second, func() bool {
		return !slices.ContainsFunc(processes(t, h), func(p process) bool { return p.command == commands["helper"] })
	})
}

// copyingSlowly makes the keeper of a checkpoint take its time with what it copies out.
var copyingSlowly = slices.Repeat([]string{"cuMemcpyDtoHAsync * delay 1500"}, 8)

// ownOrder gives programs of containers that heed it an order, until the test's end.
func ownOrder(t *testing.T, h *lab.Host, orders ...string) {
	t.Helper()
	if err := h.OwnOrders(orders...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.OwnOrders(); err != nil {
			t.Error(err)
		}
	})
}

// heeding makes a container's programs heed such orders.
var heeding = slices.Concat(handing, []string{"--env", lab.OwnOrdersEnv})

// threadsOf counts the threads of a host's processes of a name.
func threadsOf(t *testing.T, h *lab.Host, command string) (n int) {
	t.Helper()
	for _, p := range processes(t, h) {
		if p.command != command {
			continue
		}
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
		if err != nil {
			t.Fatal(err)
		}
		n += len(tasks)
	}
	return n
}

// TestGPUKeeperEngineNoHolder has nobody who could take the memory: the driver saves it, unless the user wants nothing but the engine.
func TestGPUKeeperEngineNoHolder(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/keeper:1"
	before := startGPU(t, a, id, handing, "--blocks", blocks)
	forget(t, a, ref)
	order(t, a, "cuMemHostRegister * error 2 always")
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--gpu-engine", "keeper"), codeAborted, "(2)")
	unharmed(t, a, id, before)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	if bytes, why := pieces(t, a, ref); bytes != 0 || !strings.Contains(why, "nothing can take its memory") {
		t.Errorf("%.0f bytes were handed over, and the reason is %q", bytes, why)
	}
	if err := a.Order(); err != nil {
		t.Fatal(err)
	}
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
	unharmed(t, a, id, before)
	alone(t, a)
}

// TestGPUKeeperEngineOnly refuses what would go by the driver before anything is moved.
func TestGPUKeeperEngineOnly(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/only:1"
	before := startGPU(t, a, id, handing, "--blocks", blocks)
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--gpu-engine", "keeper", "--leave-running"))
	handedOver(t, a, ref, 8<<20)
	if _, err := a.Ask(t.Context(), id, "ipc"); err != nil {
		t.Fatal(err)
	}
	order(t, a, "lock * error 999")
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--gpu-engine", "keeper"), codePrecondition, "cudaIpcGetMemHandle")
	if done, _, err := a.Orders(); done != 0 || err != nil {
		t.Errorf("the driver was asked to lock it, %v", err)
	}
	unharmed(t, a, id, before)
	alone(t, a)
}

// TestGPUKeeperEngineEndsByItself has one of two processes end as it is about to hand over: the other one's snapshot is taken.
func TestGPUKeeperEngineEndsByItself(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/ends:1"
	ownOrder(t, a)
	startGPU(t, a, id, slices.Concat(heeding, forceSeveral), "--processes", "2", "--blocks", "3,4")
	forget(t, a, ref)
	ownOrder(t, a, "cuMemExportToShareableHandle 2 exit")
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	if done, err := a.OwnOrdersDone(); done != 1 || err != nil {
		t.Errorf("%d processes have ended, %v", done, err)
	}
	if bytes, why := pieces(t, a, ref); bytes != 8<<20 || why != "" {
		t.Errorf("%.0f bytes were handed over; fallbacks: %s", bytes, why)
	}
	alone(t, a)
}
