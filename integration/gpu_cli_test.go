package integration

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// decoded is what a command prints with --json.
func decoded(t *testing.T, r lab.Result) (document map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(must(t, r).Stdout), &document); err != nil {
		t.Fatalf("%v:\n%s", err, r.Stdout)
	}
	return document
}

// keysOf lists the keys of a part of a document.
func keysOf(part any) string {
	if list, ok := part.([]any); ok && len(list) > 0 {
		part = list[0]
	}
	m, _ := part.(map[string]any)
	return strings.Join(slices.Sorted(maps.Keys(m)), " ")
}

// TestGPUJSON reads what commands say of GPUs in JSON.
func TestGPUJSON(t *testing.T) {
	a, b := gpuPair(t)
	id, ref := name(t), shared.registry.Reference("gpu/json:1")
	startGPU(t, a, id, oneGPU, "--mib", "3")
	forget(t, a, ref)
	forget(t, b, ref)
	cleanup(t, b, id)
	taken := decoded(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http", "--json"))
	if got := keysOf(taken["gpu"]); got != "load lock save" {
		t.Errorf("checkpoint: gpu has %s", got)
	}
	gpu := decoded(t, a.Cryo(t.Context(), "inspect", ref, "--json"))["config"].(map[string]any)["gpu"].(map[string]any)
	for part, want := range map[string]string{
		"devices": "architecture memory minor name used uuid", "processes": "command devices memory pid", "nodes": "major minor path", "seconds": "checkpoint lock",
	} {
		if got := keysOf(gpu[part]); got != want {
			t.Errorf("inspect: %s have %s, want %s", part, got, want)
		}
	}
	if names, _ := gpu["cdi"].([]any); len(names) != 1 || names[0] != "nvidia.com/gpu=0" || gpu["driver"] != "580.159.04" || gpu["engine"] != "driver" {
		t.Errorf("inspect: %v", gpu)
	}
	restored := decoded(t, b.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--wait", "--device", "nvidia.com/gpu=1", "--json"))
	pairs, _ := restored["gpus"].([]any)
	if want := map[string]any{"old": a.UUID(0), "new": b.UUID(1)}; len(pairs) != 1 || !maps.Equal(pairs[0].(map[string]any), want) {
		t.Errorf("restore: gpus are %v, want %v", pairs, want)
	}
}

// TestGPUText sees what people see of GPUs.
func TestGPUText(t *testing.T) {
	a, _ := gpuPair(t)
	id, ref := name(t), "gpu/text:1"
	startGPU(t, a, id, append(append([]string{}, oneGPU...), forceSeveral...), "--mib", "3", "--processes", "2")
	forget(t, a, ref)
	for _, test := range []struct{ args, words []string }{
		{[]string{"checkpoint", id, ref, "--leave-running"}, []string{"GPU locked in", "saved in", "loaded in"}},
		{[]string{"inspect", ref}, []string{"NVIDIA driver 580.159.04 (branch 580)", "architecture 9.0", "nvidia.com/gpu=0", "gpu-several", a.UUID(0), "fakeapp", "3.0 MiB on 0"}},
		{[]string{"inspect", ref, "--check"}, []string{"fits this host"}},
		{[]string{"doctor"}, []string{"driver 580.159.04, CUDA 13.0, 2 GPUs", "NVIDIA H200, architecture 9.0", "1.0 GiB", "nvidia.com/gpu=0, nvidia.com/gpu=1, nvidia.com/gpu=all"}},
	} {
		out := must(t, a.Cryo(t.Context(), test.args...)).Stdout
		for _, word := range test.words {
			if !strings.Contains(out, word) {
				t.Errorf("%s does not say %q:\n%s", strings.Join(test.args, " "), word, out)
			}
		}
	}
}

// TestGPUDoctor shows hosts to the doctor whose GPUs are of no use to cryo: it says so, and what to do; the host is well for others.
func TestGPUDoctor(t *testing.T) {
	a, _ := gpuPair(t)
	for _, test := range []struct {
		name  string
		gpus  lab.GPUs
		order string
		words []string
	}{
		{"divided", lab.GPUs{Devices: []lab.GPU{{MIG: true}}}, "", []string{"divided into instances"}},
		{"driver fails", gpusOfA, "init * error 999", []string{"CUDA_ERROR_UNKNOWN"}},
		{"helper dies", gpusOfA, "init * exit", []string{"cryo-gpu-keeper"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			setGPUs(t, a, test.gpus, gpusOfA)
			order(t, a, test.order)
			r := must(t, a.Cryo(t.Context(), "doctor"))
			for _, word := range test.words {
				if !strings.Contains(r.Stdout, word) {
					t.Errorf("does not say %q:\n%s", word, r.Stdout)
				}
			}
		})
	}
}
