package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// twoDevices is a container on two GPUs.
type twoDevices struct {
	name        string
	flags, args []string
}

// onTwo are containers that hand over memory of both GPUs of their host: 8 MiB of each.
var onTwo = []twoDevices{
	{"one process", slices.Concat(bothGPUs, engineKeeper), []string{"--blocks", blocks}},
	{"a process on each", slices.Concat(bothGPUs[:4], engineKeeper, forceSeveral), []string{"--processes", "2", "--apart", "--blocks", blocks}},
}

// managedOnTwo hands over as much as one of onTwo does. Its memory is managed, and both GPUs reach it.
var managedOnTwo = twoDevices{"managed memory", slices.Concat(bothGPUs, engineKeeper), []string{"--blocks", blocks, "--managed", "--alternate", "6"}}

// turn tells whether the case with a number is tried with that one of onTwo, and for which GPU: the containers take turns, and so do the GPUs in each.
func turn(number, container int) (device int, tried bool) {
	return number / len(onTwo) % 2, number%len(onTwo) == container
}

var engineKeeper = []string{"--annotation", "io.cryo.gpu.engine=keeper"}

// fromEach fails the test unless a snapshot has what a container of onTwo hands over, from each GPU of the host where it was taken.
func fromEach(t *testing.T, h, takenOn *lab.Host, ref string) {
	t.Helper()
	gpu, _ := decoded(t, h.Cryo(t.Context(), "inspect", ref, "--json"))["config"].(map[string]any)["gpu"].(map[string]any)
	from := map[string]float64{}
	all, _ := gpu["processes"].([]any)
	for _, p := range all {
		p, _ := p.(map[string]any)
		list, _ := p["pieces"].([]any)
		for _, piece := range list {
			piece, _ := piece.(map[string]any)
			size, _ := piece["size"].(float64)
			from[fmt.Sprint(piece["device"])] += size
		}
		if why, ok := p["fallback"]; ok {
			t.Errorf("%v went by the driver: %v", p["pid"], why)
		}
	}
	for i := range 2 {
		if from[takenOn.UUID(i)] < 8<<20 {
			t.Errorf("%v were handed over, little of GPU %d, %s", from, i, takenOn.UUID(i))
		}
	}
}

// TestGPUKeeperEngineTwoDevices has memory of two GPUs go to another host's, by pairs that are not those it would take by itself, and back.
func TestGPUKeeperEngineTwoDevices(t *testing.T) {
	for _, c := range append(slices.Clone(onTwo), managedOnTwo) {
		t.Run(c.name, func(t *testing.T) {
			ref, before := gpuSnapshot(t, c.flags, c.args...)
			a, b := gpuPair(t)
			fromEach(t, a, a, ref)
			id := name(t)
			back := shared.registry.Reference("gpu/" + id + "-back:1")
			cleanup(t, b, id)
			forget(t, a, back)
			forget(t, b, back)
			pairs := []string{"--gpu", a.UUID(0) + "=" + b.UUID(0), "--gpu", a.UUID(1) + "=" + b.UUID(1)}
			must(t, b.Cryo(t.Context(), slices.Concat([]string{"restore", ref, "--name", id, "--allow", "devices"}, pairs)...))
			after := unharmed(t, b, id, before)
			goneOn(t, before, after)
			moved(t, before, after, a, b, []int{0, 1})
			alone(t, b)

			taken := decoded(t, b.Cryo(t.Context(), "checkpoint", id, back, "--leave-running", "--push", "--plain-http", "--force", "all", "--json"))
			if shares, _ := taken["shared"].(float64); shares < 16<<20 {
				t.Errorf("%.0f bytes of the second snapshot are the first one's", shares)
			}
			fromEach(t, b, b, back)
			unharmed(t, b, id, before)
			remove(t.Context(), b, id)
			cleanup(t, a, id)
			must(t, a.Cryo(t.Context(), "restore", back, "--name", id, "--plain-http", "--allow", "devices"))
			again := unharmed(t, a, id, before)
			goneOn(t, after, again)
			moved(t, after, again, b, a, []int{1, 0})
			alone(t, a)
		})
	}
}

// numbered gives GPUs numbers.
func numbered(g lab.GPUs, numbers ...string) lab.GPUs {
	g.Devices = slices.Clone(g.Devices)
	for i, n := range numbers {
		g.Devices[i].Number = n
	}
	return g
}

// renumbered are the two hosts: of b's GPUs one has a number that no GPU of a has, and the other takes the place of one with another.
func renumbered(t *testing.T) (a, b *lab.Host) {
	t.Helper()
	a, b = gpuPair(t)
	setGPUs(t, a, numbered(gpusOfA, "0", "1"), gpusOfA)
	setGPUs(t, b, numbered(gpusOfB, "4", "1"), gpusOfB)
	ownOrder(t, b)
	coldGPU(t, b)
	return a, b
}

// leaving are host b's GPUs, of other numbers, with so much free of each beside what is in use.
func leaving(t *testing.T, b *lab.Host, free int64) lab.GPUs {
	t.Helper()
	g, used := numbered(gpusOfB, "4", "1"), inUseOn(t, b)
	for i := range g.Devices {
		g.Devices[i].Memory = int64(used[b.UUID(i)]) + free
	}
	return g
}

// TestGPUKeeperEngineRenumbered has memory go to GPUs of other numbers, where the driver of a process finds nothing that it is given: the process makes its
// memory, and a keeper fills it from what was loaded, or prewarmed. Its memory is handed over there as elsewhere, and it goes back.
func TestGPUKeeperEngineRenumbered(t *testing.T) {
	a, b := renumbered(t)
	for _, c := range onTwo {
		t.Run(c.name, func(t *testing.T) {
			ref, before := gpuSnapshot(t, c.flags, c.args...)
			fromEach(t, a, a, ref)
			id, free := name(t), inUse(t, b)
			back, live := shared.registry.Reference("gpu/"+id+"-back:1"), "gpu/"+id+"-live:1"
			for _, h := range []*lab.Host{a, b} {
				cleanup(t, h, id)
				forget(t, h, back)
				forget(t, h, live)
			}
			restore := []string{"restore", ref, "--name", id, "--plain-http", "--allow", "devices", "--force", "all"}
			must(t, b.Cryo(t.Context(), append([]string{"--root", ownRoot(t, b)}, restore...)...)) // it is pulled
			after := unharmed(t, b, id, before)
			goneOn(t, before, after)
			moved(t, before, after, a, b, []int{1, 0})
			alone(t, b)
			used := inUse(t, b)
			for range 2 {
				must(t, b.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--force", "all", "--gpu-engine", "keeper"))
				fromEach(t, b, b, live)
				unharmed(t, b, id, before)
				alone(t, b)
				if now := inUse(t, b); now != used {
					t.Errorf("%.0f bytes are in use, %.0f were", now, used)
				}
			}
			taken := decoded(t, b.Cryo(t.Context(), "checkpoint", id, back, "--push", "--plain-http", "--force", "all", "--json"))
			if shares, _ := taken["shared"].(float64); shares < 16<<20 {
				t.Errorf("%.0f bytes of the last snapshot are the first one's", shares)
			}
			fromEach(t, b, b, back)
			remove(t.Context(), b, id)
			for _, from := range []string{ref, live, back} {
				must(t, b.Cryo(t.Context(), "prewarm", "--gpu", from))
				order(t, b, loadless...)
				remove(t.Context(), b, restoreLoaded(t, b, from, true, before, "--force", "all"))
				order(t, b)
				wantPrewarmed(t, b, 0)
				must(t, b.Cryo(t.Context(), "prewarm", "rm", from))
			}
			eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == free })

			must(t, a.Cryo(t.Context(), "restore", back, "--name", id, "--plain-http", "--allow", "devices", "--force", "all"))
			again := unharmed(t, a, id, before)
			goneOn(t, after, again)
			must(t, a.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--force", "all"))
			fromEach(t, a, a, live)
			unharmed(t, a, id, before)
			alone(t, a)
		})
	}
}

// TestGPUKeeperEngineRenumberedNotFilled has filling fail at a restore onto GPUs of other numbers, where memory was prewarmed: another keeper does it, or
// it is tried again, or nothing is left on the GPUs.
func TestGPUKeeperEngineRenumberedNotFilled(t *testing.T) {
	_, b := renumbered(t)
	for container, c := range onTwo {
		ref, before := gpuSnapshot(t, slices.Concat(c.flags, []string{"--env", lab.OwnOrdersEnv}), c.args...)
		free := inUse(t, b)
		for i, test := range []struct {
			order, own string
			prewarmed  bool
			words      string // of what it is refused with
		}{
			{order: "cuMemcpyDtoDAsync *@%s error 700", prewarmed: true},
			{order: "cuMemcpyDtoDAsync *@%s exit", prewarmed: true},
			{order: "cuMemImportFromShareableHandle *@%s error 999", prewarmed: true},
			{own: "cuMemCreate *@%s error 2", prewarmed: true},
			{own: "cuMemExportToShareableHandle *@%s error 999", prewarmed: true},
			{order: "cuMemImportFromShareableHandle *@%s error 999 always", words: "CUDA_ERROR_UNKNOWN"},
			{own: "cuMemCreate *@%s error 2 always", words: "CUDA_ERROR_OUT_OF_MEMORY"},
		} {
			device, tried := turn(i, container)
			if !tried {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s, %d", c.name, strings.ReplaceAll(test.order+test.own, "@%s", ""), device), func(t *testing.T) {
				if test.words == "" {
					must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
				}
				if test.order != "" {
					order(t, b, fmt.Sprintf(test.order, b.UUID(device)))
				} else {
					ownOrder(t, b, fmt.Sprintf(test.own, b.UUID(device)))
				}
				if test.words == "" {
					remove(t.Context(), b, restoreLoaded(t, b, ref, test.prewarmed, before, "--force", "all"))
				} else {
					id := name(t)
					cleanup(t, b, id)
					unchanged(t, b, func() {
						refusal(t, quietly(b.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices", "--force", "all")), codeAborted, test.words)
					})
				}
				order(t, b)
				ownOrder(t, b)
				alone(t, b)
				wantPrewarmed(t, b, 0)
				eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == free })
			})
		}
		must(t, b.Cryo(t.Context(), "prewarm", "rm", ref))
	}
}

// TestGPUKeeperEngineRenumberedFails has checkpoints of containers on GPUs of other numbers fail in each way that is theirs: they run on with what they had, and no GPU has
// anything of the attempt.
func TestGPUKeeperEngineRenumberedFails(t *testing.T) {
	_, b := renumbered(t)
	for container, c := range onTwo {
		ref, before := gpuSnapshot(t, slices.Concat(c.flags, []string{"--env", lab.OwnOrdersEnv}), c.args...)
		id := name(t)
		live := "gpu/" + id + "-live:1"
		cleanup(t, b, id)
		forget(t, b, live)
		must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices", "--force", "all"))
		unharmed(t, b, id, before)
		used := inUse(t, b)
		for i, test := range []struct {
			order, own string
			fails      bool
		}{
			{order: "cuMemcpyDtoDAsync *@%s error 700"},
			{order: "cuMemcpyDtoDAsync *@%s exit", fails: true}, // which has what is to be sent
			{order: "cuMemcpyDtoHAsync *@%s error 700", fails: true},
			{own: "cuMemCreate *@%s error 2"},   // until what it gave has been sent
			{own: "cuMemCreate *@%s error 999"}, // it is tried again
			{own: "cuMemUnmap *@%s error 999", fails: true},
			{own: "cuMemMap *@%s error 999"},
		} {
			device, tried := turn(i, container)
			if !tried {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s, %d", c.name, strings.ReplaceAll(test.order+test.own, "@%s", ""), device), func(t *testing.T) {
				if test.order != "" {
					order(t, b, fmt.Sprintf(test.order, b.UUID(device)))
				} else {
					ownOrder(t, b, fmt.Sprintf(test.own, b.UUID(device)))
				}
				r := b.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--force", "all")
				if test.fails {
					refusal(t, r, codeAborted, "the container runs on")
				} else {
					must(t, r)
					fromEach(t, b, b, live)
				}
				if done, err := b.OwnOrdersDone(); test.own != "" && (done != 1 || err != nil) {
					t.Errorf("the call was not made, %v", err)
				}
				unharmed(t, b, id, before)
				order(t, b)
				alone(t, b)
				eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == used })
			})
		}
		// No room for copies: it stands still until all has been sent, and gets its memory back piece by piece, with the room of the largest.
		const largest = 6 << 20
		setGPUs(t, b, leaving(t, b, largest), gpusOfB)
		must(t, b.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--force", "all", "--gpu-engine", "keeper"))
		fromEach(t, b, b, live)
		unharmed(t, b, id, before)
		if now := inUse(t, b); now != used {
			t.Errorf("%.0f bytes are in use, %.0f were", now, used)
		}
		// No room for a piece more, which is known before anything is handed over.
		tight := leaving(t, b, largest)
		setGPUs(t, b, leaving(t, b, largest-2<<20), gpusOfB)
		if r := b.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--force", "all", "--gpu-engine", "keeper"); r.Code == 0 {
			t.Error("it could not be given its memory back")
		}
		unharmed(t, b, id, before)
		must(t, b.Cryo(t.Context(), "checkpoint", id, live, "--leave-running", "--force", "all"))
		if bytes, why := pieces(t, b, live); bytes != 0 || !strings.Contains(why, "no room for one piece more") {
			t.Errorf("%.0f bytes were handed over, and the reason is %q", bytes, why)
		}
		unharmed(t, b, id, before)
		remove(t.Context(), b, id)
		// A restore needs no more.
		setGPUs(t, b, tight, gpusOfB)
		must(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices", "--force", "all"))
		unharmed(t, b, id, before)
		remove(t.Context(), b, id)
		ownOrder(t, b)
		setGPUs(t, b, numbered(gpusOfB, "4", "1"), gpusOfB)
	}
}

// TestGPUKeeperEngineTwoDevicesFail has calls fail for one of two GPUs, while the other's memory is handed over. The container runs on with all of
// both, and no GPU has anything of the attempt, but for what the driver would not release.
func TestGPUKeeperEngineTwoDevicesFail(t *testing.T) {
	a, _ := gpuPair(t)
	calls := []struct{ side, call string }{
		{"container", "cuMemExportToShareableHandle"}, {"container", "cuMemUnmap"}, {"container", "cuMemRelease"}, {"container", "cuMemCreate"},
		{"container", "cuMemImportFromShareableHandle"}, {"container", "cuMemMap"}, {"container", "cuMemSetAccess"},
		{"container", "cuMemcpyDtoD"}, {"keeper", "cuMemImportFromShareableHandle"}, {"keeper", "cuMemMap"}, {"keeper", "cuMemSetAccess"},
		{"keeper", "cuMemcpyDtoHAsync"},
	}
	for container, c := range onTwo {
		id := name(t)
		ref := "gpu/" + id + ":1"
		ownOrder(t, a)
		before := startGPU(t, a, id, slices.Concat(c.flags, []string{"--env", lab.OwnOrdersEnv}), c.args...)
		forget(t, a, ref)
		traced := trace(t, a)
		for i, f := range calls {
			device, tried := turn(i, container)
			if !tried {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s in the %s for GPU %d", c.name, f.call, f.side, device), func(t *testing.T) {
				used, said := inUse(t, a), fmt.Sprintf("%s *@%s error 999", f.call, a.UUID(device))
				if f.side == "keeper" {
					order(t, a, said)
				} else {
					ownOrder(t, a, said)
				}
				if r := a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"); r.Code != 0 {
					refusal(t, r, codeAborted, "the container runs on")
				}
				unharmed(t, a, id, before)
				if done, err := a.OwnOrdersDone(); f.side == "container" && (done != 1 || err != nil) {
					t.Errorf("the call was not made, %v", err)
				}
				tidy(t, a, ref, traced)
				if f.call != "cuMemRelease" {
					eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, a) == used })
				}
			})
		}
		alone(t, a)
		must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
		fromEach(t, a, a, ref)
		unharmed(t, a, id, before)
		remove(t.Context(), a, id)
	}
}

// TestGPUKeeperEngineTwoDevicesNotRestored has a restore fail for one of two GPUs: nothing is left on either, and the next one succeeds.
func TestGPUKeeperEngineTwoDevicesNotRestored(t *testing.T) {
	_, b := gpuPair(t)
	ownOrder(t, b)
	for container, c := range onTwo {
		ref, before := gpuSnapshot(t, slices.Concat(c.flags, []string{"--env", lab.OwnOrdersEnv}), c.args...)
		id := name(t)
		cleanup(t, b, id)
		args := []string{"restore", ref, "--name", id, "--plain-http", "--allow", "devices"}
		used := inUse(t, b)
		fails := func(t *testing.T, code int, words string) {
			t.Helper()
			unchanged(t, b, func() { refusal(t, quietly(b.Cryo(t.Context(), args...)), code, words) })
			alone(t, b)
			eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == used })
		}
		for i, test := range []struct {
			call, action string
			own          bool
			words        string
		}{
			{"cuMemCreate", "error 2", false, "CUDA_ERROR_OUT_OF_MEMORY"},
			{"cuMemExportToShareableHandle", "error 999", false, "CUDA_ERROR_UNKNOWN"},
			{"cuMemcpyHtoDAsync", "error 700", false, "cuMemcpyHtoDAsync"},
			{"cuMemImportFromShareableHandle", "error 1 always", true, "CUDA_ERROR_INVALID_VALUE"},
		} {
			device, tried := turn(i, container)
			if !tried {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s for GPU %d", c.name, test.call, device), func(t *testing.T) {
				said := fmt.Sprintf("%s *@%s %s", test.call, b.UUID(device), test.action)
				if test.own {
					ownOrder(t, b, said)
				} else {
					order(t, b, said)
				}
				fails(t, codeAborted, test.words)
			})
		}
		t.Run(fmt.Sprintf("%s, no room on GPU %d", c.name, container), func(t *testing.T) {
			setGPUs(t, b, withLittle(container), gpusOfB)
			fails(t, codeMisfit, "gpu-memory")
		})
		must(t, b.Cryo(t.Context(), args...))
		goneOn(t, before, unharmed(t, b, id, before))
		alone(t, b)
		remove(t.Context(), b, id)
	}
}

// withLittle are host b's GPUs, of which one has no room for anything.
func withLittle(device int) lab.GPUs {
	small := gpusOfB
	small.Devices = slices.Clone(gpusOfB.Devices)
	small.Devices[device].Memory = 4 << 20
	return small
}

// TestGPUKeeperEngineTwoDevicesNoCopy has room for a copy on one of two GPUs: the container stands still until all of
// both has been taken.
func TestGPUKeeperEngineTwoDevicesNoCopy(t *testing.T) {
	a, _ := gpuPair(t)
	for _, c := range onTwo {
		t.Run(c.name, func(t *testing.T) {
			small := gpusOfA
			small.Devices = []lab.GPU{{Minor: 0}, {Minor: 1, Memory: 264 << 20}}
			setGPUs(t, a, small, gpusOfA)
			id, ref := name(t), "gpu/half:1"
			before := startGPU(t, a, id, c.flags, c.args...)
			forget(t, a, ref)
			used := inUse(t, a)
			order(t, a, copyingSlowly...)
			taken := decoded(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--json"))
			if seconds, _ := taken["freeze"].(float64); seconds < 1.5 {
				t.Errorf("it stood still for %.1f s: not until all had been taken", seconds)
			}
			fromEach(t, a, a, ref)
			unharmed(t, a, id, before)
			alone(t, a)
			if now := inUse(t, a); now != used {
				t.Errorf("%.0f bytes are in use, %.0f were", now, used)
			}
			remove(t.Context(), a, id)
			must(t, a.Cryo(t.Context(), "restore", ref, "--name", id, "--allow", "devices"))
			unharmed(t, a, id, before)
		})
	}
}
