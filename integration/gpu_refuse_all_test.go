package integration

import (
	"slices"
	"strings"
	"testing"
)

// TestGPURefused has containers whose device memory the driver would lose, or the host has no room for. cryo and ctr are told
// so, by the name of the rule, and the container is as it was.
func TestGPURefused(t *testing.T) {
	a, _ := gpuPair(t)
	for _, test := range []struct {
		name, words, about string
		code               int
		flags, args        []string
	}{
		{"managed", "managed memory", "(fakeapp)", codeUnsupported, oneGPU, []string{"--managed"}},
		{"a pool of managed memory", "managed memory", "(fakeapp)", codeUnsupported, oneGPU, []string{"--pool"}},
		{"several", "gpu-several", "(fakeapp), process", codePrecondition, oneGPU, []string{"--processes", "2"}},
		{"two GPUs", "gpu-peer", "uses 2 GPUs (GPU 0, GPU 1)", codePrecondition, bothGPUs[:4], nil},
		{"peer", "gpu-peer", "uses 2 GPUs (GPU 0, GPU 1)", codePrecondition, bothGPUs[:4], []string{"--peer"}},
		{"memory limit", "gpu-host-memory", "(fakeapp) takes 65 MiB of memory", codePrecondition, append([]string{"--memory-limit", "67108864"}, oneGPU...), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := name(t)
			before := startGPU(t, a, id, test.flags, test.args...)
			refused(t, a, test.code, test.words, "checkpoint", id, "gpu/refused:1")
			unharmed(t, a, id, before)
			refused(t, a, test.code, test.about, "checkpoint", id, "gpu/refused:1", "--leave-running")
			unharmed(t, a, id, before)
			unchanged(t, a, func() { refusedStock(t, a, test.words, id) })
			unharmed(t, a, id, before)
			unchanged(t, a, func() {
				r := a.Ctr(t.Context(), "containers", "checkpoint", "--task", "--rw", id, "cryo.test/refused")
				if r.Code == 0 || !strings.Contains(r.Stderr, test.words) {
					t.Errorf("exit code %d: %s", r.Code, r.Stderr)
				}
			})
			unharmed(t, a, id, before)
		})
	}
}

// TestGPUDeadline has a kernel that runs past the deadline, which is set in each of the ways there are: the refusal names the process
// and the GPU. A kernel that ends before is waited for.
func TestGPUDeadline(t *testing.T) {
	a, _ := gpuPair(t)
	ref := "gpu/deadline:1"
	forget(t, a, ref)
	for _, test := range []struct {
		name, config string
		run, flags   []string
		after        string
	}{
		{"flag", byDriver, nil, []string{"--gpu-timeout", "300ms"}, "300ms"},
		{"annotation", byDriver, []string{"--annotation", "io.cryo.gpu.timeout=200ms"}, nil, "200ms"},
		{"flag and annotation", byDriver, []string{"--annotation", "io.cryo.gpu.timeout=1m"}, []string{"--gpu-timeout", "250ms"}, "250ms"},
		{"configuration", byDriver + "timeout = 1\n", nil, nil, "1s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := a.Configure(test.config); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = a.Configure(byDriver) })
			id := name(t)
			before := startGPU(t, a, id, slices.Concat(oneGPU, forceSeveral, test.run), "--processes", "2")
			must(t, a.Cryo(t.Context(), append([]string{"checkpoint", id, ref, "--leave-running"}, test.flags...)...))
			must(t, a.Cryo(t.Context(), "rm", ref))
			launch := func() {
				if _, err := a.Ask(t.Context(), id, "launch", "6000"); err != nil {
					t.Fatal(err)
				}
			}
			unchanged(t, a, func() {
				launch() // after what there is was noted, which takes as long as a kernel on a busy machine
				refusal(t, a.Cryo(t.Context(), append([]string{"checkpoint", id, ref, "--leave-running"}, test.flags...)...), codePrecondition, "after "+test.after)
			})
			if test.flags == nil && test.config == "" {
				unchanged(t, a, func() {
					launch()
					refusedStock(t, a, "(fakeapp) on GPU 0", id)
				})
			}
			unharmed(t, a, id, before)
		})
	}
	id := name(t)
	before := startGPU(t, a, id, oneGPU, "--kernel", "1500")
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running"))
	unharmed(t, a, id, before)
}
