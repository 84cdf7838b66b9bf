package image

import (
	"maps"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
)

// TestAnnotations: a manifest has what checkpointctl names, as far as it is known, and nothing that is empty.
func TestAnnotations(t *testing.T) {
	const criu = "org.criu.checkpoint."
	d := digest.FromString("base")
	for name, test := range map[string]struct {
		config Config
		want   map[string]string
	}{
		"a pod's": {
			Config{
				Container: Container{ID: "0a1b", Image: "docker.io/library/app:1", ImageDigest: d, Runtime: "io.containerd.runc.v2", Labels: map[string]string{
					"io.kubernetes.container.name": "app", "io.kubernetes.pod.name": "web-1", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "u",
				}},
				Host: Host{CRIU: "4.2", Runc: "1.5.2", Architecture: "amd64", Kernel: "6.18.0", CgroupVersion: 2},
			},
			map[string]string{
				"org.opencontainers.image.base.name": "docker.io/library/app:1", "org.opencontainers.image.base.digest": d.String(), "io.cryo.container.id": "0a1b",
				criu + "engine.name": "containerd", criu + "container.name": "app", criu + "pod.name": "web-1", criu + "pod.namespace": "shop", criu + "pod.id": "u",
				criu + "rootfsImageName": "docker.io/library/app:1", criu + "rootfsImageUserRequested": "docker.io/library/app:1", criu + "rootfsImageID": d.String(),
				criu + "runtime.name": "runc", criu + "runtime.version": "1.5.2", criu + "criu.version": "4.2", criu + "host.arch": "amd64",
				criu + "host.kernel": "6.18.0", criu + "cgroup.version": "v2",
			},
		},
		"nerdctl's": {
			Config{Container: Container{ID: "0a1b", Labels: map[string]string{"nerdctl/name": "web"}}},
			map[string]string{"io.cryo.container.id": "0a1b", criu + "engine.name": "containerd", criu + "runtime.name": "runc", criu + "container.name": "web"},
		},
	} {
		if got := annotations(test.config); !maps.Equal(got, test.want) {
			t.Errorf("%s has %v\n%v", name, slices.Sorted(maps.Keys(got)), got)
		}
	}
}
