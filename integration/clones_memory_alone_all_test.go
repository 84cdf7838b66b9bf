package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/guard"
)

// sharesMemory is what a host has whose restored containers share memory.
const sharesMemory = "[restore]\nshare-memory = true\n"

// ksm has the settings of the kernel's search for equal pages, which is the whole machine's.
const ksm = "/sys/kernel/mm/ksm"

// scale is how many clones of how much memory [TestClonesMemory] restores, and when it looks at them.
type scale struct {
	clones []int
	mib    int
	after  []time.Duration
	pages  string // that the kernel looks at in 20 ms
}

// scaled is the scale of the test. With CRYO_CLONES_MEMORY=PAGES it is the one whose results shim/DECISIONS.md has.
func scaled() scale {
	if pages := os.Getenv("CRYO_CLONES_MEMORY"); pages != "" {
		return scale{[]int{1, 8}, 256, []time.Duration{0, 10 * time.Second, 60 * time.Second}, pages}
	}
	return scale{[]int{3}, 48, []time.Duration{0, 5 * time.Second}, "4000"}
}

// lookForEqual has the kernel look for equal pages until the test ends, or not.
func lookForEqual(t *testing.T, run, pages string) {
	t.Helper()
	set := func(name, value string) {
		path := filepath.Join(ksm, name)
		before, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(value), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(path, bytes.TrimSpace(before), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
	set("pages_to_scan", pages)
	set("run", run)
}

// rollup returns the lines of a process's smaps_rollup, in bytes.
func rollup(t *testing.T, pid int) map[string]int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int64{}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		if n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
			all[name] = n << 10
		}
	}
	return all
}

// asksToShare reports whether the kernel looks for equal pages in a process's memory.
func asksToShare(t *testing.T, pid int) bool {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(data), " mg")
}

// searched returns the processor time of the kernel's search for equal pages since the machine was started.
func searched(t *testing.T) time.Duration {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if name, err := os.ReadFile(path); err != nil || string(name) != "ksmd\n" {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		if err != nil {
			t.Fatal(err)
		}
		ticks, err := strconv.ParseInt(strings.Fields(string(stat))[14], 10, 64) // stime, see proc_pid_stat(5)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(ticks) * time.Second / 100
	}
	t.Fatal("the kernel has no thread ksmd")
	return 0
}

// restoredClones restores a snapshot so many times, waits until all memory is there and returns names and first processes.
func restoredClones(t *testing.T, h *lab.Host, ref string, n int) (ids []string, pids []int) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("%s-%d", name(t), i)
		cleanup(t, h, id)
		must(t, h.Cryo(t.Context(), "restore", ref, "--name", id))
		await(t, h, id) // it looks at all its memory
		pid, _, err := h.Task(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		ids, pids = append(ids, id), append(pids, pid)
	}
	return ids, pids
}

// TestClonesMemory restores clones that share memory and clones that do not, and prints how much each has. Clones that share have their memory as it was, and a clone that writes changes none but its own.
// A snapshot of a clone that shares is whole, and its restore shares only where this host's configuration wants that.
func TestClonesMemory(t *testing.T) {
	apart, _ := pair(t)
	together := newHost(t, "sharing", lab.HostOptions{CryoConfig: sharesMemory})
	if err := guard.SharingSupported("/"); err != nil && !strings.Contains(err.Error(), "does not look") {
		warnsOfSharing(t, together, "the kernel")
		return
	}
	lookForEqual(t, "0", "100")
	warnsOfSharing(t, together, "does not look for equal memory")
	s := scaled()
	lookForEqual(t, "1", s.pages)
	ref := "clones/memory:1"
	for _, h := range []*lab.Host{apart, together} {
		id := name(t)
		start(t, h, id, nil, "workload", "count", "--memory", strconv.Itoa(s.mib))
		forget(t, h, ref)
		must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
		remove(t.Context(), h, id)
	}
	least := int64(0) // of a clone that shares nothing
	var ids []string
	var pids []int
	for i, n := range s.clones {
		for _, h := range []*lab.Host{apart, together} {
			ids, pids = restoredClones(t, h, ref, n)
			restored, before := time.Now(), searched(t)
			for _, after := range s.after {
				time.Sleep(time.Until(restored.Add(after)))
				var pss, same int64
				for _, pid := range pids {
					pss, same = pss+rollup(t, pid)["Pss"]/int64(n), same+rollup(t, pid)["KSM"]/int64(n)
				}
				if h == apart {
					least = pss
				}
				t.Logf("%d clones of %d MiB, shared: %v, after %2.0f s: PSS of each %5.1f MiB, %.2f of its memory, %5.1f MiB shared; the kernel has searched for %v",
					n, s.mib, h == together, after.Seconds(), float64(pss)/(1<<20), float64(pss)/float64(int64(s.mib)<<20), float64(same)/(1<<20), searched(t)-before)
			}
			for _, pid := range pids {
				if asks := asksToShare(t, pid); asks != (h == together) {
					t.Errorf("a clone that is to share: %v asks the kernel for it: %v", h == together, asks)
				}
			}
			if h == together && i == len(s.clones)-1 {
				break
			}
			for _, id := range ids {
				remove(t.Context(), h, id)
			}
		}
	}
	restored := time.Now()
	eventually(t, "clones that share have less memory than clones that do not", 10*time.Minute, func() bool {
		var pss int64
		for _, pid := range pids {
			pss += rollup(t, pid)["Pss"] / int64(len(pids))
		}
		return pss < least*2/3
	})
	t.Logf("%v later the clones that share have less than two thirds of the memory of those that do not", time.Since(restored).Round(time.Second))
	shim := find(t, together, runsShim(ids[0]))
	if shim == 0 || asksToShare(t, shim) {
		t.Errorf("the shim, process %d, is missing or shares memory", shim)
	}
	keepApart(t, together, apart, ids)
}

// warnsOfSharing restores a container where the kernel does not help, and looks for the warning.
func warnsOfSharing(t *testing.T, h *lab.Host, words string) {
	t.Helper()
	id, ref := name(t), "clones/alone:1"
	start(t, h, id, nil, "workload", "count")
	forget(t, h, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	restoredClones(t, h, ref, 1)
	log, err := os.ReadFile(h.Log())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "shares no memory with others") && strings.Contains(line, words) && strings.Contains(line, "hint=") {
			return
		}
	}
	t.Errorf("containerd's log has no warning with %q", words)
}

// keepApart has one of several clones that share memory change its own, takes the snapshot of another, and restores that on a host where nothing is shared.
func keepApart(t *testing.T, h, apart *lab.Host, ids []string) {
	t.Helper()
	before := await(t, h, ids[1]).State["sha256"]
	if a, err := h.Ask(t.Context(), ids[0], "change", "20"); err != nil || !a.OK {
		t.Fatal(err, a.Error)
	}
	for _, id := range ids {
		if now := await(t, h, id).State["sha256"]; (now == before) != (id != ids[0]) {
			t.Errorf("%s has memory %v, and clones had %v", id, now, before)
		}
	}
	ref := shared.registry.Reference("clones/" + ids[1] + ":1")
	away(t, ref)
	must(t, h.Cryo(t.Context(), "checkpoint", ids[1], ref, "--push", "--plain-http"))
	id := ids[1] + "-apart"
	cleanup(t, apart, id)
	must(t, apart.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http"))
	if now := await(t, apart, id).State["sha256"]; now != before {
		t.Errorf("the snapshot of a clone has memory %v, not %v", now, before)
	}
	pid, _, err := apart.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if asksToShare(t, pid) {
		t.Error("a container shares memory where the configuration does not want that")
	}
}
