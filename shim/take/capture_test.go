package take

import (
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
)

func TestUpperDir(t *testing.T) {
	overlay := []mount.Mount{{Type: "overlay", Options: []string{"workdir=/w", "upperdir=/u", "lowerdir=/l"}}}
	if got := upperDir(overlay); got != "/u" {
		t.Errorf("upperDir = %q", got)
	}
	for _, other := range [][]mount.Mount{nil, {{Type: "bind", Source: "/x"}}, {{Type: "overlay", Options: []string{"lowerdir=/l"}}}, append(overlay, overlay...)} {
		if got := upperDir(other); got != "" {
			t.Errorf("upperDir(%v) = %q", other, got)
		}
	}
}
