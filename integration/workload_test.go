package integration

import (
	"testing"
)

// workloads are the kinds that check a state of their own, with arguments that need no flags of "ctr run".
var workloads = map[string][]string{
	"count":    {"--memory", "8", "--fill", "mixed"},
	"files":    {"--lock"},
	"identity": nil,
	"pipes":    nil,
	"rootfs":   nil,
	"shm":      nil,
	"tcp":      {"--connect", "self"},
	"terminal": nil,
	"tmpfs":    nil,
	"tree":     nil,
	"unixsock": nil,
	"volumes":  {"/dev/shm", "/run", "/srv"},
}

// TestWorkload proves the workload program: each kind finds its state whole, twice, where nothing was done to it.
func TestWorkload(t *testing.T) {
	a, _ := pair(t)
	for kind, args := range workloads {
		t.Run(kind, func(t *testing.T) {
			id := name(t)
			start(t, a, id, []string{"--runtime", runcRuntime}, append([]string{"workload", kind}, args...)...)
			await(t, a, id)
		})
	}
}
