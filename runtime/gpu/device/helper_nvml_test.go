package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/gputest"
)

// watcher starts a program that watches devices by NVML, whose device files are nodes, and returns it with the ids of its processes.
func watcher(t *testing.T, library bool, flags ...string) (app *gputest.App, pids []int) {
	t.Helper()
	h := gputest.New(t, 64, 64)
	h.Env = []string{"FAKENVML_NODE=" + nodes}
	if library {
		h.Env = append(h.Env, "LD_PRELOAD="+gputest.Bin("libcryo-gpu.so"))
	}
	// A process that this one waits for cannot be traced by it: that is waited for as well.
	h.Wrapper = filepath.Join(t.TempDir(), "wrapper")
	gputest.Script(t, h.Wrapper, "#!/bin/sh\n\"$@\" &\nwait\n")
	app = h.Run(flags...)
	first := app.PIDs[0]
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", first, first))
	if err != nil {
		t.Fatal(err)
	}
	pids = []int{first}
	for _, c := range strings.Fields(string(children)) {
		var pid int
		if _, err := fmt.Sscan(c, &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return app, pids
}

// watches fails the test unless all threads and children go on with queries that succeed.
func watches(t *testing.T, app *gputest.App) (eventsEnded int) {
	t.Helper()
	first := app.Works().State.Processes[0]
	var now = first
	gputest.Eventually(t, "queries of NVML", func() bool {
		now = app.Works().State.Processes[0]
		return now.Ticks > first.Ticks+3
	})
	return now.Rounds
}

// holding counts the processes that have device files.
func holding(t *testing.T, pids []int) (n int) {
	t.Helper()
	for _, pid := range pids {
		f, err := deviceFilesOf(pid, nodes)
		if err != nil {
			t.Fatal(err)
		}
		if !f.none() {
			n++
		}
	}
	return n
}

// TestNVMLRenewed takes device files from a process that watches by several threads, and from the children that it has forked with NVML open. All their queries succeed, by the handles that they have.
func TestNVMLRenewed(t *testing.T) {
	for _, how := range []string{"dlsym", "direct"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			app, pids := watcher(t, true, "--no-cuda", "--nvml", how, "--watchers", "4", "--watching-children", "2")
			s := newStopper(nil)
			s.prefix = nodes
			defer func() { _ = s.yield(t.Context()) }()
			ended := watches(t, app)
			for round := range 20 {
				for _, pid := range pids {
					if renews, err := RenewsNVML(pid); err != nil || !renews {
						t.Fatalf("process %d of %v does not renew NVML (%v)", pid, pids, err)
					}
				}
				if n, err := s.giveUp(pids); err != nil || n != len(pids) {
					t.Fatalf("%d of %d gave up device files: %v", n, len(pids), err)
				}
				if n := holding(t, pids); n != 0 {
					t.Fatalf("%d have device files", n)
				}
				if n := holding(t, pids); n != 0 {
					t.Fatalf("%d have opened device files while they stood still", n)
				}
				if err := s.yield(t.Context()); err != nil {
					t.Fatal(err)
				}
				now := watches(t, app)
				gputest.Eventually(t, "device files are open again", func() bool { return holding(t, pids) == len(pids) })
				gputest.Eventually(t, "the event set has ended", func() bool { now = app.Works().State.Processes[0].Rounds; return now > ended })
				if ended = now; round%5 == 0 {
					time.Sleep(10 * time.Millisecond) // at another point of the queries
				}
			}
		})
	}
}

// TestNVMLNotRenewed has processes whose NVML nothing initialises again: without the library, without NVML, and where the program has handles that the library does not see.
func TestNVMLNotRenewed(t *testing.T) {
	_, without := watcher(t, false, "--no-cuda", "--nvml", "dlsym")
	_, other := watcher(t, true)
	_, arrays := watcher(t, true, "--no-cuda", "--nvml", "topology")
	for _, pid := range []int{without[0], other[0], arrays[0], os.Getpid(), 1 << 22} {
		if renews, err := RenewsNVML(pid); err != nil || renews {
			t.Errorf("process %d renews NVML: %v, %v", pid, renews, err)
		}
	}
}
