package integration

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestGPUAnnotation restore snapshots with GPUs into containers that a stock client has given theirs.

// byNodes gives a container GPUs as a device plugin does that knows nothing of CDI: by the nodes of these numbers, and mounts.
func byNodes(h *lab.Host, minors ...int) (flags []string) {
	nodes := []string{"nvidiactl", "nvidia-uvm"}
	for _, n := range minors {
		nodes = append(nodes, "nvidia"+strconv.Itoa(n))
	}
	for _, node := range nodes {
		flags = append(flags, "--device", "/dev/"+node)
	}
	return append(flags,
		"--mount", "type=bind,src="+h.DriverLibrary()+",dst=/usr/lib64/libcuda.so.1,options=rbind:ro",
		"--mount", "type=bind,src="+h.NVMLLibrary()+",dst=/usr/lib64/libnvidia-ml.so.1,options=rbind:ro",
		"--mount", "type=bind,src="+lab.GPUDir+",dst="+lab.GPUMount+",options=rbind:rw")
}

// byNames gives a container GPUs as CRI does by device plugins with CDI and by DRA: the client puts what CDI devices stand for into the specification, and no names. That ctr
// is told names changes nothing: it keeps none.
func byNames(indices ...int) (flags []string) {
	for _, n := range indices {
		flags = append(flags, "--device", "nvidia.com/gpu="+strconv.Itoa(n))
	}
	return flags
}

// engines are flags that choose each.
var engines = map[string][]string{"driver": nil, "keeper": {"--annotation", "io.cryo.gpu.engine=keeper"}}

// forcePeer lets a container be checkpointed one of whose processes uses two GPUs.
var forcePeer = []string{"--annotation", "io.cryo.gpu.force=gpu-peer"}

// annotationPair is the two hosts with GPUs, which allow the shared registry for the annotation.
func annotationPair(t *testing.T) (a, b *lab.Host) {
	t.Helper()
	a, b = gpuPair(t)
	for _, h := range []*lab.Host{a, b} {
		allowAnnotation(t, h, byDriver, shared.registry.Address)
		t.Cleanup(func() {
			if err := h.Configure(byDriver); err != nil {
				t.Error(err)
			}
		})
	}
	return a, b
}

// pushedRef is pushedGPU for host a of the two; the snapshot goes from both hosts with the test.
func pushedRef(t *testing.T, flags []string, args ...string) (ref string, before lab.Answer) {
	t.Helper()
	a, b := gpuPair(t)
	path, before := pushedGPU(t, a, flags, args...)
	ref = shared.registry.Reference(path)
	forget(t, a, ref)
	forget(t, b, ref)
	return ref, before
}

// runGPUFrom has ctr run a container that is restored from ref, with the GPUs that the flags give it.
func runGPUFrom(t *testing.T, h *lab.Host, id, ref string, flags ...string) lab.Result {
	t.Helper()
	cleanup(t, h, id)
	all := slices.Concat([]string{"run", "--detach", "--runtime", cryoRuntime, "--log-uri", "file://" + logFile(h, id), "--annotation", restoreAnnotation + "=" + ref}, flags,
		[]string{sharedGPUs.image, id, "/fake/fakeapp", "--quiet"})
	return h.Ctr(t.Context(), all...)
}

// settled waits until nothing of a restore is under way on a host.
func settled(t *testing.T, h *lab.Host) {
	t.Helper()
	alone(t, h)
	eventually(t, "the end of the restore process", time.Minute, func() bool { return len(restorers(t, h)) == 0 })
}

// hasGPUs fails the test unless a container has nodes of these GPUs and no others, and its cgroup lets it use these alone.
func hasGPUs(t *testing.T, h *lab.Host, id string, minors ...int) {
	t.Helper()
	pid, _, err := h.Task(t.Context(), id)
	if err != nil || pid == 0 {
		t.Fatalf("%s has no task: %v", id, err)
	}
	want := slices.Sorted(slices.Values(minors))
	seen, allowed, err := lab.GPUsOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, want) || allowed != nil && !slices.Equal(allowed, want) {
		t.Errorf("%s sees the GPUs %v and may use %v, want %v", id, seen, allowed, want)
	}
}

// TestGPUAnnotation restores a snapshot of one GPU into containers that were given one: the one that it names, another, and one of another host, whatever the names that it
// has recorded are there. Another container uses the GPU that it names, and does not notice.
func TestGPUAnnotation(t *testing.T) {
	a, b := annotationPair(t)
	for engine, flags := range engines {
		for way, given := range map[string][]string{"names": byNames(0), "nodes": byNodes(a, 0)} {
			t.Run(engine+" "+way, func(t *testing.T) {
				ref, before := pushedRef(t, slices.Concat(given, flags), "--blocks", blocks)
				user := name(t)
				used := startGPU(t, a, user, oneGPU)
				for _, test := range []struct {
					name  string
					h     *lab.Host
					given []string
					index int
					minor int
				}{
					{"the other GPU by names", a, byNames(1), 1, 1},
					{"the other GPU by nodes", a, byNodes(a, 1), 1, 1},
					{"the same GPU", a, given, 0, 0},
					{"another host by names", b, byNames(1), 1, 1},
					{"another host by nodes", b, byNodes(b, 4), 0, 4},
				} {
					t.Run(test.name, func(t *testing.T) {
						id := name(t)
						must(t, runGPUFrom(t, test.h, id, ref, test.given...))
						after := unharmed(t, test.h, id, before)
						goneOn(t, before, after)
						if now := devicesOf(t, after); len(now) != 1 || now[0] != test.h.UUID(test.index) {
							t.Errorf("it is on %v, and was given %s", now, test.h.UUID(test.index))
						}
						hasGPUs(t, test.h, id, test.minor)
						settled(t, test.h)
						remove(t.Context(), test.h, id)
					})
				}
				unharmed(t, a, user, used)
				remove(t.Context(), a, user)
			})
		}
	}
}

// TestGPUAnnotationOnward takes a snapshot of a container that was restored by its annotation, with GPUs that have no names, and restores that.
func TestGPUAnnotationOnward(t *testing.T) {
	a, b := annotationPair(t)
	for engine, flags := range engines {
		t.Run(engine, func(t *testing.T) {
			ref, before := pushedRef(t, slices.Concat(byNames(0), flags), "--blocks", blocks)
			id := name(t)
			must(t, runGPUFrom(t, b, id, ref, byNodes(b, 4)...))
			unharmed(t, b, id, before)
			settled(t, b)
			onward := shared.registry.Reference("gpu/" + id + "-onward:1")
			forget(t, a, onward)
			forget(t, b, onward)
			must(t, b.Cryo(t.Context(), "checkpoint", id, onward, "--push", "--plain-http"))
			gpu := decoded(t, b.Cryo(t.Context(), "inspect", onward, "--json"))["config"].(map[string]any)["gpu"].(map[string]any)
			if gpu["cdi"] != nil || gpu["engine"] != engine {
				t.Errorf("it is by %v, with the names %v", gpu["engine"], gpu["cdi"])
			}
			remove(t.Context(), b, id)
			must(t, runGPUFrom(t, a, id, onward, byNames(1)...))
			goneOn(t, before, unharmed(t, a, id, before))
			hasGPUs(t, a, id, 1)
			settled(t, a)
			remove(t.Context(), a, id)
			must(t, runGPUFrom(t, b, id, onward, byNodes(b, 1)...))
			goneOn(t, before, unharmed(t, b, id, before))
			hasGPUs(t, b, id, 1)
			settled(t, b)
		})
	}
}

// TestGPUAnnotationMap says which of two GPUs takes the place of which, by numbers and by UUIDs; nobody says it, and they do so by their nodes.
func TestGPUAnnotationMap(t *testing.T) {
	a, b := annotationPair(t)
	for engine, flags := range engines {
		t.Run(engine, func(t *testing.T) {
			ref, before := pushedRef(t, slices.Concat(byNames(0, 1), forcePeer, flags), "--blocks", blocks)
			for _, test := range []struct {
				name, text string
				h          *lab.Host
				want       []int
			}{
				{"in order", "", b, []int{1, 0}},
				{"by numbers", "0=1,1=0", b, []int{0, 1}},
				{"by UUIDs", a.UUID(0) + "=" + a.UUID(1) + "," + a.UUID(1) + "=" + a.UUID(0), a, []int{1, 0}},
				{"one by its number", "1=0", a, []int{1, 0}},
			} {
				t.Run(test.name, func(t *testing.T) {
					id := name(t)
					given := byNames(0, 1)
					if test.text != "" {
						given = append(given, "--annotation", "io.cryo.gpu.map="+test.text)
					}
					must(t, runGPUFrom(t, test.h, id, ref, given...))
					after := unharmed(t, test.h, id, before)
					goneOn(t, before, after)
					moved(t, before, after, a, test.h, test.want)
					settled(t, test.h)
					remove(t.Context(), test.h, id)
				})
			}
			for says, text := range map[string]string{
				"gpu-missing: the snapshot has no GPU 2, but 2":  "2=0",
				"gpu-missing: the container has no GPU 2, but 2": "0=2",
				"gpu-missing: two GPUs":                          "0=1,0=0",
				"gpu-missing: GPU " + a.UUID(0):                  "0=" + a.UUID(0),
				"is neither":                                     "first=second",
			} {
				notRestored(t, b, ref, says, append(byNames(0, 1), "--annotation", "io.cryo.gpu.map="+text)...)
			}
		})
	}
}

// notRestored wants a container not to be restored, with nothing left of it.
func notRestored(t *testing.T, h *lab.Host, ref, says string, given ...string) {
	t.Helper()
	id := name(t)
	r := runGPUFrom(t, h, id, ref, given...)
	if r.Code == 0 || !strings.Contains(r.Stderr, says) {
		t.Errorf("%v: exit status %d, want %q: %s", given, r.Code, says, r.Stderr)
	}
	settled(t, h)
	h.Ctr(t.Context(), "tasks", "delete", "--force", id) // there is none, unless it was created
	changed(t, h, id)
	remove(t.Context(), h, id)
}

// startedInstead wants a container that cannot be restored to be started, where it asks for that.
func startedInstead(t *testing.T, h *lab.Host, heard *heard, ref, says string, before lab.Answer, given ...string) {
	t.Helper()
	id := name(t)
	must(t, runGPUFrom(t, h, id, ref, orStart(given)...))
	isStarted(t, h, heard, id, says, before)
}

// orStart adds to flags of ctr run that the container is to be started where it cannot be restored.
func orStart(flags []string) []string {
	return append(slices.Clone(flags), "--annotation", fallbackAnnotation+"=start")
}

// isStarted wants a container to have been started instead of restored, and removes it.
func isStarted(t *testing.T, h *lab.Host, heard *heard, id, says string, before lab.Answer) {
	t.Helper()
	now := answers(t, h, id)
	if now.Life == before.Life {
		t.Error("it was restored")
	}
	unharmed(t, h, id, now)
	settled(t, h)
	remove(t.Context(), h, id)
	class := "aborted"
	if rule, _, named := strings.Cut(says, ": "); named && strings.HasPrefix(rule, "gpu-") {
		class = rule
	}
	heard.fallback(t, id, says, class)
}

// TestGPUAnnotationMisfit has containers whose GPUs a snapshot does not fit, with the snapshot in the registry and on the host: the rule is told and nothing is left, or they are
// started afresh, unless the rule is found while CRIU is at work.
func TestGPUAnnotationMisfit(t *testing.T) {
	_, b := annotationPair(t)
	heard := eventsOf(t, b)
	for engine, flags := range engines {
		t.Run(engine, func(t *testing.T) {
			ref, before := pushedRef(t, slices.Concat(byNames(0, 1), forcePeer, flags), "--blocks", "3,4")
			refuses := func(t *testing.T, says string, given ...string) {
				notRestored(t, b, ref, says, given...)
				startedInstead(t, b, heard, ref, says, before, slices.Concat(given, flags)...)
			}
			// What is only known when CRIU is at work is not answered by a start.
			fails := func(t *testing.T, says string, given ...string) {
				notRestored(t, b, ref, says, given...)
				notRestored(t, b, ref, says, orStart(slices.Concat(given, flags))...)
			}
			for _, where := range []string{"registry", "host"} {
				if where == "host" {
					must(t, b.Cryo(t.Context(), "pull", ref, "--plain-http"))
				}
				t.Run("too few in the "+where, func(t *testing.T) { refuses(t, "gpu-count: the snapshot has 2 GPUs, and would get 1", byNames(0)...) })
				t.Run("too few by nodes in the "+where, func(t *testing.T) {
					refuses(t, "gpu-count: the snapshot has 2 GPUs, and would get 1", byNodes(b, 4)...)
				})
				for rule, gpus := range misfits {
					if len(gpus.Devices) == 0 {
						continue // ctr finds that itself
					}
					t.Run(rule+" in the "+where, func(t *testing.T) {
						setGPUs(t, b, gpus, gpusOfB)
						if where == "host" {
							fails(t, rule+": ", byNames(0, 1)...)
						} else {
							refuses(t, rule+": ", byNames(0, 1)...)
						}
					})
				}
			}
			t.Run("without its files", func(t *testing.T) {
				files := slices.IndexFunc(byNodes(b, 1, 4), func(f string) bool { return f == "--mount" })
				notRestored(t, b, ref, "gpu-libraries: ", byNodes(b, 1, 4)[:files]...)
			})
			t.Run("another's files", func(t *testing.T) {
				notRestored(t, b, ref, "mounts: this container has a mount at /more", append(byNodes(b, 1, 4), "--mount", "type=bind,src=/tmp,dst=/more,options=rbind:ro")...)
			})
			t.Run("the driver fails", func(t *testing.T) {
				order(t, b, "restore 1 error 999 always")
				fails(t, "cuCheckpointProcessRestore: CUDA_ERROR_UNKNOWN", byNames(0, 1)...)
			})
			id := name(t)
			must(t, runGPUFrom(t, b, id, ref, byNames(0, 1)...))
			goneOn(t, before, unharmed(t, b, id, before))
			settled(t, b)
		})
	}
}

// TestGPUAnnotationLate: a restore fails after CRIU has made the processes and before the container is reported running. Its task fails with the reason, also where the container is to be
// started if it cannot be restored, and nothing is left.
func TestGPUAnnotationLate(t *testing.T) {
	a, b := annotationPair(t)
	ownOrder(t, b)
	const driver, library = "driver", "library"
	for engine, test := range map[string]struct {
		flags  []string
		orders [][3]string // who obeys, what is said, and part of the reason
	}{
		"driver": {nil, [][3]string{
			{driver, "restore 1 error 999", "cuCheckpointProcessRestore: CUDA_ERROR_UNKNOWN"},
			{driver, "unlock 1 error 999", "cuCheckpointProcessUnlock: CUDA_ERROR_UNKNOWN"},
			{driver, "restore 1 exit always", "has died"},
			{driver, "state 1 exit-after always", "has died"},
		}},
		"keeper": {heeding, [][3]string{
			{driver, "restore 1 error 999", "cuCheckpointProcessRestore: CUDA_ERROR_UNKNOWN"},
			{driver, "cuMemCreate 1 error 2", "CUDA_ERROR_OUT_OF_MEMORY"},
			{driver, "cuMemcpyHtoDAsync 1 error 700", "cuMemcpyHtoDAsync"},
			{library, "cuMemImportFromShareableHandle 1 error 1 always", "CUDA_ERROR_INVALID_VALUE"},
		}},
	} {
		t.Run(engine, func(t *testing.T) {
			allowAnnotation(t, b, byDriver, shared.registry.Address)
			given := slices.Concat(byNames(0), test.flags)
			path, _ := pushedGPU(t, a, given, "--blocks", "3,40")
			ref := shared.registry.Reference(path)
			forget(t, b, ref)
			must(t, b.Cryo(t.Context(), "pull", ref, "--plain-http"))
			for _, o := range test.orders {
				t.Run(o[1], func(t *testing.T) {
					if o[0] == library {
						ownOrder(t, b, o[1])
					} else {
						order(t, b, o[1])
					}
					unchanged(t, b, func() { notRestored(t, b, ref, o[2], orStart(given)...) })
				})
			}
			t.Run("restore process killed", func(t *testing.T) {
				must(t, b.Cryo(t.Context(), "rm", ref))
				g := newGate(t, shared.registry, path)
				ref := g.address + "/" + path
				allowAnnotation(t, b, byDriver, g.address)
				forget(t, b, ref)
				unchanged(t, b, func() {
					id := name(t)
					cleanup(t, b, id)
					c := inBackground(t, b, slices.Concat([]string{"ctr", "run", "--detach", "--runtime", cryoRuntime, "--log-uri", "file://" + logFile(b, id), "--annotation", restoreAnnotation + "=" + ref},
						orStart(given), []string{sharedGPUs.image, id, "/fake/fakeapp", "--quiet"})...)
					c.until(t, "processes", func() bool { return slices.ContainsFunc(processes(t, b), called("fakeapp")) })
					c.until(t, "the pull", func() bool { return g.held.Load() > 0 })
					time.Sleep(300 * time.Millisecond) // CRIU is through, and the driver waits for memory
					kill(t, find(t, b, called("cryo-restore")))
					if r := c.wait(t); r.Code == 0 || !strings.Contains(r.Stderr, "restore process") {
						t.Errorf("exit status %d: %s", r.Code, r.Stderr)
					}
					settled(t, b)
					remove(t.Context(), b, id)
				}, "blob ", "store /partial/") // what was pulled is used by the next pull
			})
		})
	}
}
