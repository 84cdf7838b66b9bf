package integration

import (
	"slices"
	"strings"
	"testing"
)

// TestGPUMove takes a snapshot of one container after another on a host, and restores it on the other, whose GPUs have other
// UUIDs and whose device nodes have other numbers; from there some go back by a second snapshot. In order means by device nodes,
// which the second host has the other way round.
func TestGPUMove(t *testing.T) {
	a, b := gpuPair(t)
	for _, test := range []struct {
		name    string
		flags   []string // of ctr run
		args    []string // of fakeapp
		restore []string // flags
		want    []int    // what the GPUs 0 and 1 of the first host become, -1: it has none
	}{
		{"same name", oneGPU, nil, nil, []int{0}},
		{"other name", oneGPU, nil, []string{"--device", "nvidia.com/gpu=1"}, []int{1}},
		{"second", []string{"--device", "nvidia.com/gpu=1"}, nil, nil, []int{-1, 1}},
		{"several processes", slices.Concat(oneGPU, forceSeveral), []string{"--processes", "3"}, nil, []int{0}},
		{"two GPUs", bothGPUs, nil, nil, []int{1, 0}},
		{"two GPUs named", bothGPUs, nil, []string{"--gpu", "0=0", "--gpu", "1=1"}, []int{0, 1}},
		{"one of two named", bothGPUs, nil, []string{"--gpu", "1=1"}, []int{0, 1}},
		{"plain devices", plainGPU(a), nil, []string{"--allow", "mounts"}, []int{-1, 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ref, before := gpuSnapshot(t, test.flags, append([]string{"--mib", "3"}, test.args...)...)
			id := name(t)
			cleanup(t, b, id)
			must(t, b.Cryo(t.Context(), slices.Concat([]string{"restore", ref, "--name", id, "--plain-http", "--allow", "devices"}, test.restore)...))
			after := unharmed(t, b, id, before)
			goneOn(t, before, after)
			moved(t, before, after, a, b, test.want)
			if n := helpers(t, b); n != 0 {
				t.Errorf("%d helpers run after the restore", n)
			}
			if test.restore != nil && test.args == nil && !strings.HasPrefix(test.name, "plain") {
				return
			}
			back := shared.registry.Reference("gpu/" + id + "-back:1")
			forget(t, a, back)
			forget(t, b, back)
			must(t, b.Cryo(t.Context(), "checkpoint", id, back, "--push", "--plain-http", "--force", "all"))
			remove(t.Context(), b, id)
			cleanup(t, a, id)
			must(t, a.Cryo(t.Context(), slices.Concat([]string{"restore", back, "--name", id, "--plain-http", "--allow", "devices"}, test.restore)...))
			goneOn(t, after, unharmed(t, a, id, before))
		})
	}
}

// TestGPUMoveStock moves containers with nothing but ctr.
func TestGPUMoveStock(t *testing.T) {
	a, b := gpuPair(t)
	for name, test := range map[string]struct {
		flags, args []string
		want        []int
	}{
		"one":       {oneGPU, nil, []int{0}},
		"processes": {slices.Concat(oneGPU, forceSeveral), []string{"--processes", "2"}, []int{0}},
		"two GPUs":  {bothGPUs, nil, []int{1, 0}},
		"plain":     {plainGPU(a), nil, []int{-1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			id, ref, before := stockGPU(t, test.flags, test.args...)
			must(t, b.Ctr(t.Context(), "containers", "restore", "--live", "--rw", id, ref))
			after := unharmed(t, b, id, before)
			goneOn(t, before, after)
			moved(t, before, after, a, b, test.want)
			// What was restored is a container like any other.
			must(t, b.Cryo(t.Context(), "checkpoint", id, "gpu/stock:1", "--leave-running"))
			must(t, b.Cryo(t.Context(), "rm", "gpu/stock:1"))
			unharmed(t, b, id, before)
		})
	}
}
