package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/criu"
)

// asks puts a question to a container's first process, and wants a good answer.
func asks(t *testing.T, h *lab.Host, id, question string) {
	t.Helper()
	if a, err := h.Ask(t.Context(), id, question); err != nil || !a.OK {
		t.Fatalf("%s: %+v (%v)", question, a, err)
	}
}

// deviceFiles counts what the processes of a container have of the driver's device nodes: mappings, and descriptors.
func deviceFiles(t *testing.T, h *lab.Host, id string) (n int) {
	t.Helper()
	first, _, err := h.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range criu.ProcessTree(first)[1:] {
		maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // it may have ended
		n += strings.Count(string(maps), "/dev/nvidia")
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, link := range links {
			if target, _ := os.Readlink(link); strings.HasPrefix(target, "/dev/nvidia") {
				n++
			}
		}
	}
	return n
}

// TestGPUForked moves a program that has forked after it began to use a GPU, as loaders of training data do. Its children have inherited device files that CRIU cannot dump.
func TestGPUForked(t *testing.T) { forked(t, oneGPU) }

// forked moves such a program, whose container has these flags.
func forked(t *testing.T, flags []string) {
	t.Helper()
	a, b := gpuPair(t)
	id := name(t)
	ref := shared.registry.Reference("gpu/" + strings.ToLower(id) + ":1")
	before := startGPU(t, a, id, flags, "--blocks", blocks)
	forget(t, a, ref)
	forget(t, b, ref)
	asks(t, a, id, "fork 3")
	if n := deviceFiles(t, a, id); n != 18 {
		t.Errorf("the children have %d device files, want 18", n)
	}
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	if n := deviceFiles(t, a, id); n != 0 {
		t.Errorf("the children have %d device files still", n)
	}
	unharmed(t, a, id, before)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	must(t, a.Cryo(t.Context(), "push", ref, "--plain-http"))
	must(t, b.Cryo(t.Context(), slices.Concat([]string{"restore", ref, "--plain-http"}, oneGPU)...))
	t.Cleanup(func() { remove(context.WithoutCancel(t.Context()), b, id) })
	if after := unharmed(t, b, id, before); len(ticks(after)) != 1 {
		t.Errorf("got %+v", after)
	}
}

// TestGPUForkedUndone has the driver fail when children have given up their device files: all run on.
func TestGPUForkedUndone(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/forked:1"
	before := startGPU(t, a, id, oneGPU)
	asks(t, a, id, "fork 2")
	order(t, a, "checkpoint * error 2")
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref), codeAborted, "the container runs on")
	carriedOut(t, a)
	unharmed(t, a, id, before)
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	unharmed(t, a, id, before)
}
