package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestGPUSharedJoined has a process begin to use GPUs while those that share memory are being stopped: it may have imported some of it meanwhile. The checkpoint is refused, and all go on.
func TestGPUSharedJoined(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	before := startGPU(t, a, id, heeding, sharingAll(2)...)
	ref := "gpu/" + id + ":1"
	forget(t, a, ref)
	ownOrder(t, a, "cuCtxSynchronize 1 delay 3000")
	c := inBackground(t, a, "cryo", "checkpoint", id, ref, "--leave-running")
	c.until(t, "the first process to be stopped", func() bool { done, err := a.OwnOrdersDone(); return err == nil && done > 0 })
	if answer, err := a.Ask(t.Context(), id, "spawn"); err != nil || !answer.OK {
		t.Errorf("%+v, %v", answer, err)
	}
	refusal(t, quietly(c.wait(t)), codeAborted, "goes on starting processes")
	unharmed(t, a, id, before)
	shareOn(t, a, id, 3)
	alone(t, a)
}

// TestGPUSharedBetween: processes that share memory of two GPUs are refused while another program uses one of these, unless that is overridden.
func TestGPUSharedBetween(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	ref := "gpu/" + id + ":1"
	forget(t, a, ref)
	before := startGPU(t, a, id, onDevices["two GPUs"], append(sharingAll(2), "--apart")...)
	startGPU(t, a, id+"-other", onDevices["two GPUs"][2:])
	refused(t, a, codePrecondition, "gpu-shared", "checkpoint", id, ref, "--leave-running")
	unharmed(t, a, id, before)
	shareOn(t, a, id, 3)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--force", "gpu-shared"))
	must(t, a.Cryo(t.Context(), "rm", ref))
	remove(t.Context(), a, id+"-other")
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	unharmed(t, a, id, before)
	shareOn(t, a, id, 3)
	alone(t, a)
}

// TestGPUSharedHost leaves processes that share memory of the host running, and restores them.
func TestGPUSharedHost(t *testing.T) {
	sharedJourney(t, 2, 6, 3*2<<20, onDevices["two GPUs"], "--processes", "3", "--share-host", "4", "--apart", "--blocks", "2")
}

// TestGPUSharedHostAlone has a process with memory of the host with handles, and no device memory to hand over.
func TestGPUSharedHostAlone(t *testing.T) {
	ref, before := gpuSnapshot(t, handing, "--share-host", "4", "--blocks", "1")
	_, b := gpuPair(t)
	id := name(t)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	goneOn(t, before, unharmed(t, b, id, before))
	alone(t, b)
}

// TestGPUSharedJourney has four and eight processes that share memory, on one GPU and by turns on two, go to another host and back, left running, ended and prewarmed.
func TestGPUSharedJourney(t *testing.T) {
	for where, flags := range onDevices {
		for _, processes := range []int{4, 8} {
			t.Run(fmt.Sprintf("%d on %s", processes, where), func(t *testing.T) {
				a, b := gpuPair(t)
				id := name(t)
				live, ref, back := "gpu/"+id+"-live:1", shared.registry.Reference("gpu/"+id+":1"), shared.registry.Reference("gpu/"+id+":2")
				before := startGPU(t, a, id, flags, append(sharingAll(processes), "--apart")...)
				for _, h := range []*lab.Host{a, b} {
					forget(t, h, live)
					forget(t, h, ref)
					forget(t, h, back)
				}
				must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
				unharmed(t, a, id, before)
				must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
				handedOver(t, a, ref, float64(processes*12<<20))
				if n := imported(t, a, ref); n != processes*(processes-1) {
					t.Errorf("%d imports are recorded", n)
				}
				remove(t.Context(), a, id)

				cleanup(t, b, id)
				must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
				after := unharmed(t, b, id, before)
				goneOn(t, before, after)
				shareOn(t, b, id, 5)
				must(t, b.Cryo(t.Context(), "checkpoint", id, back, "--push", "--plain-http"))
				remove(t.Context(), b, id)

				must(t, a.Cryo(t.Context(), "prewarm", "--gpu", "--plain-http", back))
				must(t, a.Cryo(t.Context(), "restore", back, "--name", id, "--plain-http", "--allow", "devices"))
				goneOn(t, after, unharmed(t, a, id, before))
				shareOn(t, a, id, 6)
				alone(t, a)
				alone(t, b)
			})
		}
	}
}

// TestGPUSharedFail has each call of the driver fail in one process after the other while sharing is taken away: all go on as before. Whatever cannot be put together again is reported as
// lost.
func TestGPUSharedFail(t *testing.T) {
	for _, call := range []string{"cuMemUnmap", "cuMemExportToShareableHandle", "cuMemRelease"} {
		for process := 1; process <= 2; process++ {
			for pass := range 3 {
				t.Run(fmt.Sprintf("%s %d after %d", call, process, pass), func(t *testing.T) {
					a, _ := gpuPair(t)
					id := name(t)
					before := startGPU(t, a, id, heeding, sharingAll(2)...)
					var orders []string
					for range pass {
						orders = append(orders, fmt.Sprintf("%s %d pass", call, process))
					}
					ownOrder(t, a, append(orders, fmt.Sprintf("%s %d error 1", call, process))...)
					forget(t, a, "gpu/"+id+":1")
					r := a.Cryo(t.Context(), "checkpoint", id, "gpu/"+id+":1", "--leave-running")
					t.Logf("exit code %d: %s", r.Code, r.Stderr)
					ownOrder(t, a)
					if r.Code == codeLost {
						gone(t, a, id)
						return
					}
					unharmed(t, a, id, before)
					shareOn(t, a, id, 4)
					alone(t, a)
				})
			}
		}
	}
}

// TestGPUSharedKilled kills a process that shares memory at a moment of a checkpoint: the others go on, or all is reported as lost.
func TestGPUSharedKilled(t *testing.T) {
	for _, call := range []string{"cuMemUnmap", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemMap"} {
		for _, pass := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s after %d", call, pass), func(t *testing.T) {
				a, _ := gpuPair(t)
				id := name(t)
				startGPU(t, a, id, heeding, sharingAll(3)...)
				ownOrder(t, a, slices.Concat(slices.Repeat([]string{call + " 2 pass"}, pass), []string{call + " 2 exit"})...)
				forget(t, a, "gpu/"+id+":1")
				r := a.Cryo(t.Context(), "checkpoint", id, "gpu/"+id+":1", "--leave-running")
				t.Logf("exit code %d: %s", r.Code, r.Stderr)
				ownOrder(t, a)
				switch r.Code {
				case 0:
					t.Error("it reports success")
				case codeLost:
				default:
					if answer, err := a.Ask(t.Context(), id, "count"); err != nil {
						t.Errorf("%+v, %v", answer, err)
					}
				}
				remove(t.Context(), a, id)
				alone(t, a)
			})
		}
	}
}

// restoreFails restores, which is to fail and leave nothing of the container. counted: so many orders are to have been carried out.
func restoreFails(t *testing.T, b *lab.Host, args []string, counted bool, orders int) {
	t.Helper()
	unchanged(t, b, func() {
		r := quietly(b.Cryo(t.Context(), args...))
		t.Logf("exit code %d: %s", r.Code, r.Stderr)
		if done, err := b.OwnOrdersDone(); err != nil || counted && done != orders {
			t.Errorf("%d orders were carried out, %v", done, err)
		}
		refusal(t, r, codeAborted, "")
	})
	alone(t, b)
}

// TestGPUSharedRestoreFails restores a container once for each driver call that brings shared memory back: that call fails, or its process dies at it. The restore reports the reason and leaves
// nothing of the container. A restore afterwards succeeds.
func TestGPUSharedRestoreFails(t *testing.T) {
	_, b := gpuPair(t)
	ownOrder(t, b)
	ref, before := gpuSnapshot(t, heeding, sharingAll(3)...)
	id := name(t)
	cleanup(t, b, id)
	args := []string{"restore", ref, "--name", id, "--plain-http", "--allow", "devices"}
	for _, call := range []string{"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"} {
		for _, pass := range []int{0, 3, 4} {
			if call == "cuMemExportToShareableHandle" && pass > 0 {
				continue // each has one
			}
			for _, what := range []string{"error 1 always", "exit"} {
				t.Run(fmt.Sprintf("%s after %d: %s", call, pass, what), func(t *testing.T) {
					ownOrder(t, b, slices.Concat(slices.Repeat([]string{call + " 2 pass"}, pass), []string{call + " 2 " + what})...)
					restoreFails(t, b, args, what == "exit", pass+1)
				})
			}
		}
	}
	ownOrder(t, b)
	must(t, b.Cryo(t.Context(), args...))
	goneOn(t, before, unharmed(t, b, id, before))
	shareOn(t, b, id, 3)
	alone(t, b)
}

// TestGPUPeer has one process on two GPUs, one of which has access to the other's memory, left running and restored: access is there again.
func TestGPUPeer(t *testing.T) {
	a, b := gpuPair(t)
	id := name(t)
	live, ref := "gpu/"+id+"-live:1", shared.registry.Reference("gpu/"+id+":1")
	before := startGPU(t, a, id, onDevices["two GPUs"], "--peer", "--blocks", "1,6,9")
	for _, h := range []*lab.Host{a, b} {
		forget(t, h, live)
		forget(t, h, ref)
	}
	for range 2 {
		must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
		asBefore(t, a, id, before)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	handedOver(t, a, ref, 28<<20)
	remove(t.Context(), a, id)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
	goneOn(t, before, asBefore(t, b, id, before))
	alone(t, a)
	alone(t, b)
}

// TestGPUReduce moves two processes that share memory, whose kernels wait for each other, and which never rest.
func TestGPUReduce(t *testing.T) {
	sharedJourney(t, 1, 2, 2*12<<20, handing, append(sharingAll(2), "--reduce", "1")...)
}

// TestGPUReduceEight stops eight processes whose kernels wait for each other, and which never rest.
func TestGPUReduceEight(t *testing.T) {
	for where, flags := range onDevices {
		t.Run(where, func(t *testing.T) {
			sharedJourney(t, 3, 8*7, 8*12<<20, flags, append(sharingAll(8), "--apart", "--reduce", "1")...)
		})
	}
}

// TestGPUReduceBehind stops two processes of which one makes some ten thousand calls between two kernels that wait for each other, as a rank of a large model does.
func TestGPUReduceBehind(t *testing.T) {
	sharedJourney(t, 3, 2, 2*12<<20, handing, append(sharingAll(2), "--reduce", "20000")...)
}
