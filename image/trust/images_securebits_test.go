package trust

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestSecureBits: nothing shows the bits of another process, so the review asks for all that a process without CAP_SETPCAP could not have set.
func TestSecureBits(t *testing.T) {
	for _, test := range []struct {
		bits    uint32
		granted bool
		asks    bool
	}{{0, false, false}, {1 << 4, false, false}, {0xf00, false, false}, {1, false, true}, {1 << 2, false, true}, {1 << 5, false, true}, {1 << 6, false, true}, {0xff, true, false}} {
		spec := &specs.Spec{Process: &specs.Process{}}
		if test.granted {
			spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_SETPCAP"}}
		}
		r := newImageReviewer(nil, spec, nil)
		r.secureBits(test.bits)
		if asks := len(r.requests) > 0; asks != test.asks || asks && (r.requests[0].Grant != Privileges || !strings.Contains(r.requests[0].What, "secure bits")) {
			t.Errorf("%+v: %+v", test, r.requests)
		}
	}
}
