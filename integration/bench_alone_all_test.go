package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBench runs the bench on a small container: every figure that can be had is there on both sides, whatever it is, every restored
// process has its memory, and nothing is left behind.
func TestBench(t *testing.T) {
	dir := t.TempDir()
	program, results := filepath.Join(dir, "bench"), filepath.Join(dir, "bench.json")
	must(t, lab.Finish(exec.CommandContext(t.Context(), "go", "build", "-o", program, "./bench")))
	run := must(t, lab.Finish(exec.CommandContext(t.Context(), program, "--json", results, "--store", filepath.Dir(shared.lab.Dir),
		"--sizes", "16m", "--rounds", "1", "--cases", "snapshot,push,restore,second")))
	data, err := os.ReadFile(results)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Figures []struct {
			Case, What, NotRun, BesideWhat, BesideNotRun string
			Cryo, Beside                                 []float64
		}
		Warnings []string
	}
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, f := range report.Figures {
		seen[f.Case]++
		if f.NotRun != "" || len(f.Cryo) == 0 || f.Cryo[0] <= 0 {
			t.Errorf("%s, %s: %v, not run: %q", f.Case, f.What, f.Cryo, f.NotRun)
		}
		if f.BesideNotRun != "" || f.BesideWhat != "" && len(f.Beside) == 0 {
			t.Errorf("%s, %s, %s: %v, not run: %q", f.Case, f.What, f.BesideWhat, f.Beside, f.BesideNotRun)
		}
	}
	for _, name := range []string{"freeze", "snapshot", "push", "restore", "second", "peak"} {
		if seen[name] == 0 {
			t.Errorf("there are no figures of %s", name)
		}
	}
	for _, warning := range report.Warnings {
		t.Error(warning)
	}
	if t.Failed() {
		t.Log(run.Stdout, run.Stderr)
	}
}
