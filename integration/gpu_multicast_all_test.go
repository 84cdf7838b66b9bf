package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// castingHeeding are containers on two GPUs that heed orders.
var castingHeeding = slices.Concat(onGPUs(2), []string{"--env", lab.OwnOrdersEnv})

// TestGPUMulticastJourney has four and eight processes with a multicast object go to another host, whose GPUs have other numbers in another order, and back, left running, ended and prewarmed; with
// memory that all share besides, and captured graphs, whose addresses stay.
func TestGPUMulticastJourney(t *testing.T) {
	for _, test := range []struct {
		processes, imports int
		more               []string
	}{
		{2, 1 + 2, []string{"--share", "4", "--reduce", "1"}},
		{4, 3 + 12, []string{"--share", "4", "--captures", "1"}},
		{8, 7, nil},
	} {
		t.Run(fmt.Sprint(test.processes), func(t *testing.T) {
			a, b := gpuPair(t)
			manyGPUs(t, a, gpusOfA, 0, 1, 2, 3, 4, 5, 6, 7)
			manyGPUs(t, b, gpusOfB, 6, 1, 4, 7, 0, 3, 2, 5)
			id := name(t)
			live, ref, back := "gpu/"+id+"-live:1", shared.registry.Reference("gpu/"+id+":1"), shared.registry.Reference("gpu/"+id+":2")
			before := startGPU(t, a, id, onGPUs(test.processes), append(castingAll(test.processes), test.more...)...)
			for _, h := range []*lab.Host{a, b} {
				forget(t, h, live)
				forget(t, h, ref)
				forget(t, h, back)
			}
			for key := range 2 {
				must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--gpu-engine", "keeper"))
				unharmed(t, a, id, before)
				shareOn(t, a, id, 7+key)
			}
			must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
			handedOver(t, a, ref, float64(test.processes*6<<20))
			if n := imported(t, a, ref); n != test.imports {
				t.Errorf("%d imports are recorded", n)
			}
			remove(t.Context(), a, id)

			cleanup(t, b, id)
			must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--allow", "devices"))
			after := unharmed(t, b, id, before)
			goneOn(t, before, after)
			shareOn(t, b, id, 5)
			must(t, b.Cryo(t.Context(), "checkpoint", id, live, "--leave-running"))
			unharmed(t, b, id, before)
			must(t, b.Cryo(t.Context(), "checkpoint", id, back, "--push", "--plain-http"))
			remove(t.Context(), b, id)

			must(t, a.Cryo(t.Context(), "prewarm", "--gpu", "--plain-http", back))
			must(t, a.Cryo(t.Context(), "restore", back, "--name", id, "--plain-http", "--allow", "devices"))
			goneOn(t, after, unharmed(t, a, id, before))
			shareOn(t, a, id, 6)
			remove(t.Context(), a, id)
			alone(t, a)
			alone(t, b)
		})
	}
}

// TestGPUMulticastExchanged restores processes onto each other's GPUs.
func TestGPUMulticastExchanged(t *testing.T) {
	a, b := gpuPair(t)
	ref, before := gpuSnapshot(t, onGPUs(2), castingAll(2)...)
	id := name(t)
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
	after := unharmed(t, b, id, before)
	moved(t, before, after, a, b, []int{1, 0})
	shareOn(t, b, id, 4)
	alone(t, b)
}

// TestGPUMulticastNoRoom has no room for a copy on the GPUs: the container stands still until all has been taken, and what is bound is the memory that comes back.
func TestGPUMulticastNoRoom(t *testing.T) {
	a, _ := gpuPair(t)
	small := gpusOfA
	small.Devices = []lab.GPU{{Minor: 0, Memory: 292 << 20}, {Minor: 1, Memory: 292 << 20}}
	setGPUs(t, a, small, gpusOfA)
	id, ref := name(t), "gpu/casting-room:1"
	before := startGPU(t, a, id, onGPUs(2), "--processes", "2", "--apart", "--multicast", "4", "--blocks", "32")
	forget(t, a, ref)
	for key := range 2 {
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--gpu-engine", "keeper"))
		handedOver(t, a, ref, 72<<20)
		unharmed(t, a, id, before)
		shareOn(t, a, id, 3+key)
	}
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
	unharmed(t, a, id, before)
	shareOn(t, a, id, 6)
	alone(t, a)
}

// TestGPUMulticastAlone has one process with a multicast object of two GPUs, which it passes to no other.
func TestGPUMulticastAlone(t *testing.T) {
	sharedJourney(t, 2, 0, 12<<20, onGPUs(2), "--multicast", "4", "--blocks", "3")
}

// castCalls are the calls of the driver by which multicast objects go and come back.
var castCalls = []string{"cuMulticastUnbind", "cuMemRelease", "cuMulticastCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMemMap", "cuMemSetAccess"}

// TestGPUMulticastFail has each of the calls fail in one process after the other during a checkpoint: all go on as before, or the container is reported as lost.
func TestGPUMulticastFail(t *testing.T) {
	for _, call := range castCalls {
		for process := 1; process <= 2; process++ {
			for _, action := range []string{"error 1", "error 1 always"} {
				t.Run(fmt.Sprintf("%s %d %s", call, process, action), func(t *testing.T) {
					a, _ := gpuPair(t)
					id := name(t)
					ownOrder(t, a)
					before := startGPU(t, a, id, castingHeeding, castingAll(2)...)
					ownOrder(t, a, fmt.Sprintf("%s %d %s", call, process, action))
					forget(t, a, "gpu/"+id+":1")
					r := a.Cryo(t.Context(), "checkpoint", id, "gpu/"+id+":1", "--leave-running")
					t.Logf("exit code %d: %s", r.Code, r.Stderr)
					ownOrder(t, a)
					if r.Code == codeLost {
						if action == "error 1" || call == "cuMulticastUnbind" || call == "cuMemExportToShareableHandle" {
							t.Error("it need not have been lost")
						}
						gone(t, a, id)
						return
					}
					if slices.Contains(castCalls[4:], call) && r.Code != 0 {
						t.Error("it is not tried again")
					}
					unharmed(t, a, id, before)
					shareOn(t, a, id, 4)
					must(t, a.Cryo(t.Context(), "checkpoint", id, "gpu/"+id+":1", "--leave-running", "--gpu-engine", "keeper"))
					unharmed(t, a, id, before)
					shareOn(t, a, id, 5)
					alone(t, a)
				})
			}
		}
	}
}

// TestGPUMulticastKilled kills a process at each of the calls: the others go on, or all is reported as lost.
func TestGPUMulticastKilled(t *testing.T) {
	for _, call := range castCalls {
		for process := 2; process <= 3; process++ {
			t.Run(fmt.Sprintf("%s %d", call, process), func(t *testing.T) {
				a, _ := gpuPair(t)
				manyGPUs(t, a, gpusOfA, 0, 1, 2)
				id := name(t)
				ownOrder(t, a)
				startGPU(t, a, id, slices.Concat(onGPUs(3), []string{"--env", lab.OwnOrdersEnv}), castingAll(3)...)
				ownOrder(t, a, fmt.Sprintf("%s %d exit", call, process))
				forget(t, a, "gpu/"+id+":1")
				r := a.Cryo(t.Context(), "checkpoint", id, "gpu/"+id+":1", "--leave-running")
				t.Logf("exit code %d: %s", r.Code, r.Stderr)
				done, err := a.OwnOrdersDone()
				if err != nil {
					t.Error(err)
				}
				ownOrder(t, a)
				switch {
				case r.Code == 0 && done > 0:
					t.Error("it reports success")
				case r.Code == 0 || r.Code == codeLost:
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

// TestGPUMulticastRestoreFails restores a container once for each call that brings multicast objects back: that call fails, or its process dies at it. The restore reports the reason and leaves nothing of
// the container. A restore afterwards succeeds.
func TestGPUMulticastRestoreFails(t *testing.T) {
	a, b := gpuPair(t)
	manyGPUs(t, a, gpusOfA, 0, 1, 2)
	manyGPUs(t, b, gpusOfB, 4, 1, 2)
	ownOrder(t, b)
	ref, before := gpuSnapshot(t, slices.Concat(onGPUs(3), []string{"--env", lab.OwnOrdersEnv}), castingAll(3)...)
	id := name(t)
	cleanup(t, b, id)
	args := []string{"restore", ref, "--name", id, "--plain-http", "--allow", "devices"}
	for _, call := range castCalls[2:] {
		for process := 2; process <= 3; process++ { // the second has made the object
			if slices.Contains(castCalls[2:4], call) && process != 2 || call == "cuMemImportFromShareableHandle" && process == 2 {
				continue
			}
			for _, what := range []string{"error 1 always", "exit"} {
				t.Run(fmt.Sprintf("%s %d: %s", call, process, what), func(t *testing.T) {
					ownOrder(t, b, fmt.Sprintf("%s %d %s", call, process, what))
					restoreFails(t, b, args, what == "exit", 1)
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

// TestGPUMulticastRefused: the driver's engine, objects for fabric handles, and objects of whose processes one has ended are refused by name, unharmed, also where rules are overridden.
func TestGPUMulticastRefused(t *testing.T) {
	a, _ := gpuPair(t)
	for _, test := range []struct {
		name           string
		program, flags []string
		says           string
	}{
		{"engine driver", castingAll(2), []string{"--gpu-engine", "driver"}, "has a multicast object"},
		{"engine driver alone", []string{"--multicast", "4"}, []string{"--gpu-engine", "driver"}, "has a multicast object"},
		{"fabric", []string{"--multicast", "4", "--fabric"}, nil, "fabric handles (cuMulticastCreate)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := name(t)
			before := startGPU(t, a, id, onGPUs(2), test.program...)
			for _, force := range [][]string{nil, {"--force", "all"}} {
				refused(t, a, codePrecondition, test.says, slices.Concat([]string{"checkpoint", id, "gpu/casting:1", "--leave-running"}, test.flags, force)...)
			}
			unharmed(t, a, id, before)
			shareOn(t, a, id, 3)
			alone(t, a)
		})
	}
	t.Run("ended", func(t *testing.T) {
		manyGPUs(t, a, gpusOfA, 0, 1, 2)
		id := name(t)
		ownOrder(t, a)
		startGPU(t, a, id, slices.Concat(onGPUs(3), []string{"--env", lab.OwnOrdersEnv}), castingAll(3)...)
		ownOrder(t, a, "cuMemcpyDtoH 3 exit")
		eventually(t, "the end of the third process", 10*time.Second, func() bool { done, err := a.OwnOrdersDone(); return err == nil && done == 1 })
		refused(t, a, codePrecondition, "has a multicast object of 3 GPUs, of which processes of the container have added 2", "checkpoint", id, "gpu/casting:1", "--leave-running", "--force", "all")
		if answer, err := a.Ask(t.Context(), id, "count"); err != nil || !answer.OK {
			t.Errorf("%+v, %v", answer, err)
		}
		remove(t.Context(), a, id)
	})
}

// TestGPUMulticastMade has processes make multicast objects and give them up all the time. A checkpoint meets them in any state: it leaves them running, or is refused because one is being made; nothing
// hangs or is lost.
func TestGPUMulticastMade(t *testing.T) {
	a, _ := gpuPair(t)
	id := name(t)
	before := startGPU(t, a, id, onGPUs(2), "--processes", "2", "--apart", "--casts", "--blocks", "3")
	forget(t, a, "gpu/"+id+":1")
	taken, refusals := 0, 0
	for n := 0; n < 40 && (taken < 3 || n < 8); n++ {
		switch r := a.Cryo(t.Context(), "checkpoint", id, "gpu/"+id+":1", "--leave-running", "--gpu-engine", "keeper"); r.Code {
		case 0:
			taken++
		case codePrecondition:
			refusals++
		default:
			t.Errorf("exit code %d: %s", r.Code, r.Stderr)
		}
		made := rounds(answers(t, a, id))
		unharmed(t, a, id, before)
		eventually(t, "more multicast objects", 10*time.Second, func() bool { return rounds(answers(t, a, id)) > made })
	}
	t.Logf("%d checkpoints were taken, %d refused", taken, refusals)
	if taken == 0 {
		t.Error("no checkpoint was taken")
	}
	alone(t, a)
}

// rounds is how often the first process has gone round.
func rounds(a lab.Answer) float64 {
	processes, _ := a.State["processes"].([]any)
	first, _ := processes[0].(map[string]any)
	n, _ := first["rounds"].(float64)
	return n
}
