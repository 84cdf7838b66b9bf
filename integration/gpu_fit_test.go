package integration

import (
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// misfits are hosts that a container with 3 MiB on one GPU does not fit: the rule that says so.
var misfits = map[string]lab.GPUs{
	"gpu-driver":       {UVM: 508, Driver: "570.133.20", Devices: gpusOfB.Devices},
	"gpu-architecture": {UVM: 508, Devices: []lab.GPU{{Minor: 4, Architecture: "8.0"}, {Minor: 1}}},
	"gpu-memory":       {UVM: 508, Devices: []lab.GPU{{Minor: 4, Memory: 2 << 20}, {Minor: 1}}},
	"gpu-missing":      {UVM: 508},
}

// misfit wants a restore and "inspect --check" to name a rule, and nothing to be changed by it.
func misfit(t *testing.T, h *lab.Host, rule, ref string, flags ...string) {
	t.Helper()
	refused(t, h, codeMisfit, "\n  "+rule+": ", append([]string{"restore", ref, "--name", "misfit", "--plain-http", "--allow", "devices"}, flags...)...)
	refused(t, h, codeMisfit, "\n  "+rule+": ", append([]string{"restore", ref, "--name", "misfit", "--plain-http", "--allow", "devices", "--force", "all"}, flags...)...)
	if len(flags) > 0 {
		return
	}
	r := h.Cryo(t.Context(), "inspect", ref, "--check")
	if r.Code != codeMisfit || !strings.Contains(r.Stdout, "fatal  "+rule+" ") {
		t.Errorf("inspect --check: exit code %d:\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}
