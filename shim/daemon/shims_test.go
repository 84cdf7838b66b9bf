package daemon

import "testing"

func TestOurShim(t *testing.T) {
	for runtime, want := range map[string]bool{
		"io.containerd.cryo.v1": true, "io.containerd.runc.cryo.v1": true, "/usr/local/bin/containerd-shim-cryo-v1": true,
		"io.containerd.runc.v2": false, "io.containerd.kata.v2": false,
	} {
		if got := OurShim(runtime, 1); got != want {
			t.Errorf("OurShim(%s) = %v", runtime, got)
		}
	}
}
