package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestCritest runs cri-tools' validation of a container runtime twice at once, with the handlers cryo and runc as the default, each on a host without a
// kubelet, which would end pods that it does not know. What fails with both is the machine's doing, or comes of images that are not upstream's (digests,
// and busybox' one program for all commands): nothing may fail with cryo alone. What did is run once more, by itself: these are real daemons on a busy
// machine.
func TestCritest(t *testing.T) {
	pushCritestImages(t)
	handlers := []string{"runc", "cryo"}
	hosts := map[string]*lab.Host{}
	for i, handler := range handlers {
		h, err := shared.Host(t.Context(), "critest-"+handler, handler, fmt.Sprintf("10.212.%d.%d/26", shared.Lab.Number(), 128+64*i), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		})
		hosts[handler] = h
	}
	states := make([]map[string]string, len(handlers))
	var running sync.WaitGroup
	for i, handler := range handlers {
		running.Go(func() { states[i] = critest(t, hosts[handler], "") })
	}
	running.Wait()
	runc, cryo := states[0], states[1]
	if len(runc) < 100 || !slices.Equal(slices.Sorted(maps.Keys(runc)), slices.Sorted(maps.Keys(cryo))) {
		t.Fatalf("%d specs were run with runc and %d with cryo", len(runc), len(cryo))
	}
	for _, name := range slices.Sorted(maps.Keys(cryo)) {
		if runc[name] == cryo[name] && cryo[name] != "failed" {
			continue
		}
		t.Logf("runc %s, cryo %s: %s", runc[name], cryo[name], name)
		if runc[name] != "passed" || cryo[name] == "passed" {
			continue
		}
		if again := critest(t, hosts["cryo"], name)[name]; again != "passed" {
			t.Errorf("%s with cryo, and %s when run again; passed with runc: %s", cryo[name], again, name)
		}
	}
}

// critest runs the specs, or the one with a name, on a host, and gives their states by their names: passed, failed, skipped.
func critest(t *testing.T, h *lab.Host, name string) map[string]string {
	report := filepath.Join(h.Dir, "critest.json")
	args := []string{shared.Lab.Tool("kubernetes/critest"), "-runtime-endpoint=unix:///run/containerd/containerd.sock",
		"-image-endpoint=unix:///run/containerd/containerd.sock", "-ginkgo.no-color", "-ginkgo.json-report=" + report}
	if name != "" {
		args = append(args, "-ginkgo.focus=^CRI validation "+regexp.QuoteMeta(name)+"$")
	}
	r := h.Run(t.Context(), args...) // it exits with 1 where a spec failed
	t.Logf("critest on %s: exit status %d after %s", h.Name, r.Code, r.Elapsed)
	content, err := os.ReadFile(report)
	if err != nil {
		t.Errorf("%v\n%s%s", err, r.Stdout, r.Stderr)
		return nil
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeType, LeafNodeText, State string
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(content, &suites); err != nil {
		t.Error(err)
		return nil
	}
	states := map[string]string{}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			full := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			if spec.LeafNodeType != "It" || name != "" && full != name {
				continue
			}
			states[full] = spec.State
			if spec.State == "failed" {
				t.Logf("%s: %s: %s", h.Name, full, spec.Failure.Message)
			}
		}
	}
	return states
}
