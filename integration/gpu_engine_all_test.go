package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestGPUKeeperEngineLeaveRunning has a container run on while a copy of its memory is still being taken: it changes its memory, and the
// snapshot has what was there before. Meanwhile it can be used, but for another checkpoint.
func TestGPUKeeperEngineLeaveRunning(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/leave:1"
	before := startGPU(t, a, id, handing, "--blocks", "32,32")
	forget(t, a, ref)
	order(t, a, copyingSlowly...)
	b := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running")
	b.untilDumping(t, a)
	b.until(t, "end of the dump", func() bool { return !running(t, a, "criu")() })
	after := unharmed(t, a, id, before)
	if _, err := a.Ask(t.Context(), id, "change", "7"); err != nil {
		t.Fatal(err)
	}
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, "gpu/leave:2", "--leave-running"), codePrecondition, "another checkpoint")
	must(t, a.Ctr(t.Context(), "tasks", "pause", id))
	must(t, a.Ctr(t.Context(), "tasks", "resume", id))
	select {
	case <-b.done:
		t.Error("all had been taken already")
	default:
	}
	must(t, b.wait(t))
	handedOver(t, a, ref, 64<<20)
	unharmed(t, a, id, before)
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
	if now := unharmed(t, a, id, before); now.Count < before.Count || ticks(now)[0] < ticks(before)[0] {
		t.Errorf("it was %+v, is %+v", after, now)
	}
	alone(t, a)
}

// TestGPUKeeperEngineRoomTaken has a container find no room for its copies when it is to go on: it does so with what it gave, as soon as that has been
// taken. What it changes then is not in the snapshot.
func TestGPUKeeperEngineRoomTaken(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/taken:1"
	before := startGPU(t, a, id, heeding, "--blocks", "32,32")
	forget(t, a, ref)
	ownOrder(t, a, slices.Repeat([]string{"cuMemCreate * error 2"}, 8)...)
	order(t, a, copyingSlowly...)
	b := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running")
	b.untilDumping(t, a)
	b.until(t, "end of the dump", func() bool { return !running(t, a, "criu")() })
	if _, err := a.Ask(t.Context(), id, "change", "7"); err != nil {
		t.Fatal(err)
	}
	must(t, b.wait(t))
	handedOver(t, a, ref, 64<<20)
	unharmed(t, a, id, before)
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
	unharmed(t, a, id, before)
	alone(t, a)
}

// TestGPUKeeperEngineCopyWaits has the command stand still when the container is dumped: of one that is to run on nothing has been copied out.
func TestGPUKeeperEngineCopyWaits(t *testing.T) {
	a, _ := gpuPair(t)
	for _, leave := range []bool{false, true} {
		t.Run(fmt.Sprintf("leave running %v", leave), func(t *testing.T) {
			id, ref := name(t), "gpu/waits:1"
			before := startGPU(t, a, id, slices.Concat(handing, pagesInFiles(t, a)), "--blocks", blocks)
			forget(t, a, ref)
			order(t, a, "cuMemcpyDtoHAsync * pass")
			command := []string{"cryo", "checkpoint", id, ref}
			if leave {
				command = append(command, "--leave-running")
			}
			b := inBackground(t, a, command...)
			b.untilHeld(t, a)
			if leave {
				time.Sleep(200 * time.Millisecond)
				if obeyed(t, a)() {
					t.Error("memory is copied out while the container stands still")
				}
			} else {
				b.until(t, "copy", obeyed(t, a))
			}
			b.goOn()
			must(t, b.wait(t))
			carriedOut(t, a)
			handedOver(t, a, ref, 8<<20)
			if leave {
				unharmed(t, a, id, before)
			}
		})
	}
}

// TestGPUKeeperEngineNoRoom is the same without room for a copy: the container stands still until all has been taken.
func TestGPUKeeperEngineNoRoom(t *testing.T) {
	a, _ := gpuPair(t)
	small := gpusOfA
	small.Devices = []lab.GPU{{Minor: 0, Memory: 288 << 20}, {Minor: 1}}
	setGPUs(t, a, small, gpusOfA)
	id, ref := name(t), "gpu/room:1"
	before := startGPU(t, a, id, handing, "--blocks", "32")
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	handedOver(t, a, ref, 32<<20)
	unharmed(t, a, id, before)
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
	unharmed(t, a, id, before)
}

// TestGPUKeeperEngineFallbacks has containers that ask for the engine and go by the driver: the snapshot is whole and says why.
func TestGPUKeeperEngineFallbacks(t *testing.T) {
	a, _ := gpuPair(t)
	for title, test := range map[string]struct {
		ask   string
		flags []string
		why   string
	}{
		"other devices": {ask: "dmabuf", why: "cuMemGetHandleForAddressRange"},
		"engine driver": {flags: []string{"--gpu-engine", "driver"}, why: "does not take"},
	} {
		t.Run(title, func(t *testing.T) {
			id, ref := name(t), "gpu/"+strings.ToLower(strings.ReplaceAll(title, " ", "-"))+":1"
			before := startGPU(t, a, id, handing, "--blocks", "3")
			forget(t, a, ref)
			if test.ask != "" {
				if _, err := a.Ask(t.Context(), id, test.ask); err != nil {
					t.Fatal(err)
				}
			}
			r := must(t, a.Cryo(t.Context(), slices.Concat([]string{"checkpoint", id, ref}, test.flags)...))
			if told := strings.Contains(r.Stderr, "warning: process 1 (fakeapp) went by the driver: "); told != (test.flags == nil) {
				t.Errorf("it is said that the driver saved all: %v\n%s", told, r.Stderr)
			}
			if bytes, why := pieces(t, a, ref); bytes != 0 || !strings.Contains(why, test.why) {
				t.Errorf("%.0f bytes were handed over, and the reason is %q", bytes, why)
			}
			remove(t.Context(), a, id)
			must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
			unharmed(t, a, id, before)
		})
	}
	t.Run("stock client", func(t *testing.T) {
		id := name(t)
		before := startGPU(t, a, id, handing, "--blocks", "3")
		stockImages(t, a, id)
		unharmed(t, a, id, before)
	})
	t.Run("annotation", func(t *testing.T) {
		id := name(t)
		cleanup(t, a, id)
		r := a.Ctr(t.Context(), slices.Concat([]string{"run", "--detach", "--runtime", cryoRuntime}, oneGPU, []string{"--annotation", "io.cryo.gpu.engine=fast", sharedGPUs.image, id})...)
		if r.Code == 0 || !strings.Contains(r.Stderr, "neither driver nor keeper") {
			t.Errorf("%d %s", r.Code, r.Stderr)
		}
	})
}

// TestGPUKeeperEngineFailures has each call fail that moves memory, in the container and in the keeper. The container runs on, with or without a
// snapshot.
func TestGPUKeeperEngineFailures(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/calls:1"
	ownOrder(t, a)
	before := startGPU(t, a, id, heeding, "--blocks", "3,4")
	forget(t, a, ref)
	traced := trace(t, a)
	for _, side := range []string{"container", "keeper"} {
		for call, both := range map[string]bool{
			"cuMemExportToShareableHandle": false, "cuMemImportFromShareableHandle": true, "cuMemMap": true, "cuMemSetAccess": true,
			"cuMemUnmap": false, "cuMemRelease": false, "cuMemCreate": false, "cuMemcpyDtoD": false, "cuMemcpyDtoHAsync": true,
		} {
			if side == "keeper" && !both || side == "container" && call == "cuMemcpyDtoHAsync" {
				continue
			}
			for _, action := range []string{"error 999", "error 2"} {
				t.Run(fmt.Sprintf("%s in the %s %s", call, side, action), func(t *testing.T) {
					said := fmt.Sprintf("%s 1 %s", call, action)
					if side == "keeper" {
						order(t, a, said)
					} else {
						ownOrder(t, a, said)
					}
					r := a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running")
					if r.Code != 0 {
						refusal(t, r, codeAborted, "the container runs on")
					}
					unharmed(t, a, id, before)
					if err := a.Order(); err != nil {
						t.Fatal(err)
					}
					tidy(t, a, ref, traced)
				})
			}
		}
	}
	alone(t, a)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	handedOver(t, a, ref, 6<<20)
	unharmed(t, a, id, before)
}

// TestGPUKeeperEngineAgain takes twenty checkpoints of one container: nothing grows.
func TestGPUKeeperEngineAgain(t *testing.T) {
	const cycles, settled = 20, 5
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/again:1"
	before := startGPU(t, a, id, handing, "--blocks", "3,4")
	forget(t, a, ref)
	var first usage
	var threads int
	for i := 1; i <= cycles; i++ {
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--parent", "none"))
		if i%10 == 0 {
			unharmed(t, a, id, before)
			handedOver(t, a, ref, 6<<20)
		}
		must(t, a.Cryo(t.Context(), "rm", ref))
		if i == settled {
			first, threads = usageOf(t, a), threadsOf(t, a, "fakeapp")
		}
	}
	eventually(t, fmt.Sprintf("no more in use than the %+v after %d checkpoints", first, settled), 30*time.Second, func() bool {
		now := usageOf(t, a)
		return now.processes <= first.processes && now.descriptors <= first.descriptors && now.memory <= first.memory+8<<20
	})
	if now := threadsOf(t, a, "fakeapp"); now > threads {
		t.Errorf("%d threads, %d after %d checkpoints", now, threads, settled)
	}
	alone(t, a)
}

// TestGPUKeeperEngineCapture asks for a checkpoint while the container captures a CUDA graph: it is waited for and then refused, and neither the
// container nor the capture suffers.
func TestGPUKeeperEngineCapture(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/capture:1"
	before := startGPU(t, a, id, handing, "--blocks", blocks)
	forget(t, a, ref)
	ask := func(words ...string) {
		t.Helper()
		if answer, err := a.Ask(t.Context(), id, words...); err != nil || !answer.OK {
			t.Fatalf("%s: %+v, %v", words, answer, err)
		}
	}
	ask("capture", "0")
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--gpu-timeout", "1s"), codePrecondition, "CUDA graph")
	unharmed(t, a, id, before)
	b := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running", "--gpu-timeout", "1m")
	time.Sleep(time.Second)
	unharmed(t, a, id, before)
	// The checkpoint goes on at once then, and an answer that waits for the driver would be a connection from the host, which CRIU cannot dump.
	ask("captured", "300")
	must(t, b.wait(t))
	handedOver(t, a, ref, 8<<20)
	unharmed(t, a, id, before)
	alone(t, a)
}

// TestGPUKeeperEngineJourney has a container's device memory go to another host and back, and its snapshot share what has not changed.
func TestGPUKeeperEngineJourney(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	ref, back := shared.registry.Reference("gpu/"+id+":1"), shared.registry.Reference("gpu/"+id+":2")
	before := startGPU(t, a, id, slices.Concat(handing, forceSeveral), "--processes", "2", "--blocks", blocks)
	for _, h := range []*lab.Host{a, b} {
		forget(t, h, ref)
		forget(t, h, back)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	handedOver(t, a, ref, 2*8<<20)
	alone(t, a)
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	must(t, b.Cryo(t.Context(), "pull", ref, "--plain-http"))
	must(t, b.Cryo(t.Context(), "verify", "--allow", "all", ref))
	remove(t.Context(), a, id)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices", "--device", "nvidia.com/gpu=1"))
	after := unharmed(t, b, id, before)
	goneOn(t, before, after)
	alone(t, b)

	taken := decoded(t, b.Cryo(t.Context(), "checkpoint", id, back, "--leave-running", "--push", "--plain-http", "--force", "gpu-several", "--json"))
	if shares, _ := taken["shared"].(float64); shares == 0 {
		t.Errorf("nothing of the second snapshot is the first one's: %v", taken)
	}
	handedOver(t, b, back, 2*8<<20)
	unharmed(t, b, id, before)
	remove(t.Context(), b, id)
	cleanup(t, a, id)
	must(t, a.Cryo(t.Context(), "restore", back, "--name", id, "--plain-http", "--allow", "devices"))
	goneOn(t, after, unharmed(t, a, id, before))
	alone(t, a)
}
