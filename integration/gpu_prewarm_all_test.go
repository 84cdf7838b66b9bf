package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestGPUPrewarm restores what is on a GPU: nothing is made or filled, and every byte is right. It is used up by that.
func TestGPUPrewarm(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, handing, "--blocks", "3,40")
	coldGPU(t, b)
	free := inUse(t, b)
	for range 2 {
		said := decoded(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref, "--json"))
		if gpus, _ := said["gpus"].([]any); len(gpus) != 1 {
			t.Errorf("prewarm says %v", said)
		}
		wantLoaded(t, b, ref, blocks44)
		alone(t, b)
		if used := inUse(t, b) - free; used != blocks44 {
			t.Errorf("%.0f bytes more are in use", used)
		}
	}
	if r := must(t, b.Cryo(t.Context(), "prewarm", "ls")); !strings.Contains(r.Stdout, "44.0 MiB on GPU 0") {
		t.Errorf("it is listed as\n%s", r.Stdout)
	}
	order(t, b, loadless...)
	first := restoreLoaded(t, b, ref, true, before)
	order(t, b)
	wantLoaded(t, b, ref, 0)
	if all := warm(t, b); len(all) != 1 || all[0].Reference != ref {
		t.Errorf("it is not prewarmed any more: %v", all)
	}
	second := restoreLoaded(t, b, ref, false, before)
	alone(t, b)
	for _, id := range []string{first, second} {
		unharmed(t, b, id, before)
		remove(t.Context(), b, id)
	}
	eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == free })
}

// TestGPUPrewarmProcesses has the memory of several processes.
func TestGPUPrewarmProcesses(t *testing.T) {
	ref, before := gpuSnapshot(t, slices.Concat(handing, forceSeveral), "--processes", "2", "--blocks", blocks)
	_, b := gpuPair(t)
	coldGPU(t, b)
	must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
	order(t, b, loadless...)
	restoreLoaded(t, b, ref, true, before)
}

// TestGPUPrewarmEager has CRIU read host memory.
func TestGPUPrewarmEager(t *testing.T) {
	ref, before := gpuSnapshot(t, handing, "--blocks", "3,40")
	_, b := gpuPair(t)
	coldGPU(t, b)
	remove(t.Context(), b, restoreLoaded(t, b, ref, false, before, "--eager"))
	must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
	order(t, b, loadless...)
	restoreLoaded(t, b, ref, true, before, "--eager")
	alone(t, b)
}

// TestGPUPrewarmOnce has several restores begin at once: one has what is loaded, the others load for themselves.
func TestGPUPrewarmOnce(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, handing, "--blocks", "3,40")
	coldGPU(t, b)
	must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
	var all []*background
	var ids []string
	for range 3 {
		id := name(t)
		cleanup(t, b, id)
		ids = append(ids, id)
		all = append(all, inBackground(t, b, "cryo", "restore", ref, "--name", id, "--json", "--allow", "devices"))
	}
	used := 0
	for i, c := range all {
		if had, _ := decoded(t, c.wait(t))["gpuPrewarmed"].(bool); had {
			used++
		}
		unharmed(t, b, ids[i], before)
	}
	if used != 1 {
		t.Errorf("%d restores had what was loaded once", used)
	}
	wantLoaded(t, b, ref, 0)
	alone(t, b)
}

// TestGPUPrewarmRemoved gives device memory back.
func TestGPUPrewarmRemoved(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, handing, "--blocks", "3,40")
	coldGPU(t, b)
	free := inUse(t, b)
	traced := trace(t, b)
	must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
	must(t, b.Cryo(t.Context(), "prewarm", "rm", ref))
	wantLoaded(t, b, ref, 0)
	if now := inUse(t, b); now != free {
		t.Errorf("%.0f bytes are in use, %.0f were", now, free)
	}
	wantTrace(t, b, traced)
	restoreLoaded(t, b, ref, false, before)
}

// TestGPUPrewarmDevice is used on the GPU that it is on, and on no other.
func TestGPUPrewarmDevice(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, handing, "--blocks", "3,40")
	coldGPU(t, b)
	other := []string{"--device", "nvidia.com/gpu=1"}
	must(t, b.Cryo(t.Context(), append([]string{"prewarm", "--gpu", ref}, other...)...))
	if on := loadedOn(t, b, ref); on[b.UUID(1)] != blocks44 || len(on) != 1 {
		t.Errorf("loaded on %v", on)
	}
	restoreLoaded(t, b, ref, false, before)
	order(t, b, loadless...)
	restoreLoaded(t, b, ref, true, before, other...)
}

// TestGPUPrewarmTwoDevices has memory on two GPUs, which take the places of the snapshot's in another order than they would by themselves.
func TestGPUPrewarmTwoDevices(t *testing.T) {
	_, b := gpuPair(t)
	coldGPU(t, b)
	for _, c := range onTwo {
		ref, before := gpuSnapshot(t, c.flags, c.args...)
		free := inUse(t, b)
		for device := range 2 {
			t.Run(fmt.Sprintf("%s, no room on GPU %d", c.name, device), func(t *testing.T) {
				setGPUs(t, b, withLittle(device), gpusOfB)
				refusal(t, b.Cryo(t.Context(), "prewarm", ref, "--gpu"), codeFull, "MiB are free")
				if on := loadedOn(t, b, ref); len(on) != 0 || inUse(t, b) != free {
					t.Errorf("loaded on %v, %.0f bytes are in use, %.0f were", on, inUse(t, b), free)
				}
			})
		}
		t.Run(c.name, func(t *testing.T) {
			must(t, b.Cryo(t.Context(), "prewarm", ref, "--gpu=0=0", "--gpu=1=1"))
			if on := loadedOn(t, b, ref); on[b.UUID(0)] < 8<<20 || on[b.UUID(1)] < 8<<20 {
				t.Errorf("loaded on %v", on)
			}
			remove(t.Context(), b, restoreLoaded(t, b, ref, false, before))
			order(t, b, loadless...)
			remove(t.Context(), b, restoreLoaded(t, b, ref, true, before, "--gpu", "0=0", "--gpu", "1=1"))
			wantPrewarmed(t, b, 0)
			eventually(t, "GPUs as free as before", 10*time.Second, func() bool { return inUse(t, b) == free })
		})
	}
}

// TestGPUPrewarmKilled kills, or stops, who keeps memory loaded: a restore that has it already goes on with it, another loads for itself if it was killed.
func TestGPUPrewarmKilled(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, handing, "--blocks", "3,40")
	coldGPU(t, b)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP} {
		t.Run(sig.String()+" before", func(t *testing.T) {
			must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
			if err := syscall.Kill(find(t, b, keepsPrewarmed), sig); err != nil {
				t.Fatal(err)
			}
			remove(t.Context(), b, restoreLoaded(t, b, ref, sig == syscall.SIGSTOP, before))
			wantLoaded(t, b, ref, 0)
		})
		t.Run(sig.String()+" meanwhile", func(t *testing.T) {
			must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
			order(t, b, "restore 1 slow 1500")
			id := name(t)
			cleanup(t, b, id)
			c := inBackground(t, b, "cryo", "restore", ref, "--name", id, "--json", "--allow", "devices")
			c.until(t, "restore", obeyed(t, b))
			if err := syscall.Kill(find(t, b, keepsPrewarmed), sig); err != nil {
				t.Fatal(err)
			}
			if used, _ := decoded(t, c.wait(t))["gpuPrewarmed"].(bool); !used {
				t.Error("it has loaded for itself")
			}
			unharmed(t, b, id, before)
			remove(t.Context(), b, id)
			wantLoaded(t, b, ref, 0)
		})
	}
	t.Run("stopped, and removed", func(t *testing.T) {
		must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
		if err := syscall.Kill(find(t, b, keepsPrewarmed), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		must(t, b.Cryo(t.Context(), "prewarm", "rm", ref))
		wantLoaded(t, b, ref, 0)
	})
	alone(t, b)
}

// TestGPUPrewarmFailed has restores fail, or be killed, that have not attached anything: the next one has the memory, unharmed.
func TestGPUPrewarmFailed(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, heeding, "--blocks", "3,40")
	ownOrder(t, b)
	coldGPU(t, b)
	must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
	restore := func(id string) []string { return []string{"restore", ref, "--name", id, "--allow", "devices"} }
	t.Run("driver", func(t *testing.T) {
		order(t, b, "restore 1 error 999")
		id := name(t)
		cleanup(t, b, id)
		refusal(t, quietly(b.Cryo(t.Context(), restore(id)...)), codeAborted, "CUDA_ERROR_UNKNOWN")
		wantLoaded(t, b, ref, blocks44)
	})
	for _, victim := range []string{"client", "shim"} {
		t.Run(victim+" killed", func(t *testing.T) {
			must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref)) // if it is not
			order(t, b, "restore 1 slow 1500")
			id := name(t)
			cleanup(t, b, id)
			c := inBackground(t, b, append([]string{"cryo"}, restore(id)...)...)
			c.until(t, "restore", obeyed(t, b))
			c.victim(t, b, victim)
			c.wait(t)
			remove(t.Context(), b, id)
			if victim == "shim" { // a client's death does not keep its container from being restored
				wantLoaded(t, b, ref, blocks44)
			}
		})
	}
	must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
	order(t, b, loadless...)
	remove(t.Context(), b, restoreLoaded(t, b, ref, true, before))
	order(t, b)
	t.Run("attachment", func(t *testing.T) {
		must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
		ownOrder(t, b, slices.Repeat([]string{"cuMemImportFromShareableHandle 1 error 1"}, 3)...)
		restoreLoaded(t, b, ref, false, before)
		wantLoaded(t, b, ref, 0)
	})
	alone(t, b)
}

// TestGPUPrewarmBroken breaks off loading: all is loaded or nothing.
func TestGPUPrewarmBroken(t *testing.T) {
	_, b := gpuPair(t)
	ref, before := gpuSnapshot(t, handing, "--blocks", "3,40")
	coldGPU(t, b)
	must(t, b.Cryo(t.Context(), "prewarm", ref))
	free := inUse(t, b)
	nothing := func(t *testing.T) {
		t.Helper()
		eventually(t, "nobody keeps memory", 20*time.Second, func() bool { return !slices.ContainsFunc(processes(t, b), keepsPrewarmed) })
		alone(t, b)
		wantLoaded(t, b, ref, 0)
		if now := inUse(t, b); now != free {
			t.Errorf("%.0f bytes are in use, %.0f were", now, free)
		}
	}
	for said, words := range map[string]string{
		"cuMemCreate 1 error 2": "CUDA_ERROR_OUT_OF_MEMORY", "cuMemcpyHtoDAsync 1 error 700": "cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync 1 exit": "cryo-gpu-keeper",
	} {
		t.Run(said, func(t *testing.T) {
			order(t, b, said)
			if r := b.Cryo(t.Context(), "prewarm", "--gpu", ref); r.Code == 0 || !strings.Contains(r.Stderr, words) {
				t.Errorf("%d %s", r.Code, r.Stderr)
			}
			nothing(t)
		})
	}
	t.Run("killed while it loads", func(t *testing.T) {
		order(t, b, "cuMemcpyHtoDAsync 1 delay 1500")
		c := inBackground(t, b, "cryo", "prewarm", "--gpu", ref)
		c.until(t, "copy", obeyed(t, b))
		c.kill()
		c.wait(t)
		nothing(t)
	})
	begin := time.Now()
	must(t, b.Cryo(t.Context(), "prewarm", "--gpu", ref))
	takes := time.Since(begin)
	must(t, b.Cryo(t.Context(), "prewarm", "rm", ref))
	must(t, b.Cryo(t.Context(), "prewarm", ref))
	whole := 0
	for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT, syscall.SIGKILL, syscall.SIGKILL, syscall.SIGKILL, syscall.SIGKILL} {
		at := time.Duration((float64(i%3) + 1 + rand.Float64()) / 4 * float64(takes))
		r := broken(t, b, at, sig, "prewarm", "--gpu", ref)
		if len(loadedOn(t, b, ref)) == 0 {
			if r.Code == 0 {
				t.Errorf("%s after %s: it says that it is prewarmed", sig, at)
			}
			nothing(t)
			continue
		}
		whole++
		wantLoaded(t, b, ref, blocks44)
		remove(t.Context(), b, restoreLoaded(t, b, ref, true, before))
	}
	t.Logf("%d were whole", whole)
}

// TestGPUPrewarmBudget makes room on a GPU by what was loaded there before, and for nothing that does not fit.
func TestGPUPrewarmBudget(t *testing.T) {
	_, b := gpuPair(t)
	coldGPU(t, b)
	var refs []string
	for range 2 {
		ref, _ := gpuSnapshot(t, handing, "--blocks", "3,40")
		refs = append(refs, ref)
	}
	refusal(t, configured(t, b, "[prewarm]\ngpu = 40\n", "prewarm", "--gpu", refs[0]), codeFull, "gpu under [prewarm]")
	wantLoaded(t, b, refs[0], 0)
	must(t, configured(t, b, "[prewarm]\ngpu = 60\n", "prewarm", "--gpu", refs[0]))
	removed, _ := decoded(t, configured(t, b, "[prewarm]\ngpu = 60\n", "prewarm", "--gpu", refs[1], "--json"))["removed"].([]any)
	if len(removed) != 1 {
		t.Errorf("removed for it: %v", removed)
	}
	wantLoaded(t, b, refs[1], blocks44)
	if on := loadedOn(t, b, refs[0]); len(on) != 0 {
		t.Errorf("%s is still on %v", refs[0], on)
	}
	must(t, b.Cryo(t.Context(), "prewarm", "rm", refs[1]))
	t.Run("no room", func(t *testing.T) {
		small := gpusOfB
		small.Devices = slices.Clone(gpusOfB.Devices)
		small.Devices[0].Memory = 256 << 20
		setGPUs(t, b, small, gpusOfB)
		refusal(t, b.Cryo(t.Context(), "prewarm", "--gpu", refs[0]), codeFull, "MiB are free")
		wantLoaded(t, b, refs[0], 0)
	})
}
