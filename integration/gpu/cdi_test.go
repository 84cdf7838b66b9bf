package main

import (
	"encoding/json"
	"testing"
)

func TestReduce(t *testing.T) {
	const spec = `{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu",
"devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}],"hooks":[{"hookName":"createContainer","path":"/h","args":["nvidia-cdi-hook","chmod"]}]}}],
"containerEdits":{"mounts":[{"hostPath":"/l","containerPath":"/l"}],"hooks":[
{"hookName":"createContainer","path":"/h","args":["nvidia-cdi-hook","create-symlinks","--link","a::b"]},
{"hookName":"createContainer","path":"/h","args":["nvidia-ctk","hook","update-ldcache"]}]}}`
	for _, test := range []struct {
		name          string
		keep          func(string) bool
		drop          bool
		device, hooks int
		mounts        int
	}{
		{"as it is", func(string) bool { return true }, false, 1, 2, 1},
		{"without one hook", func(h string) bool { return h != "create-symlinks" }, false, 1, 1, 1},
		{"by a hook after a word", func(h string) bool { return h != "update-ldcache" }, false, 1, 1, 1},
		{"without hooks", func(string) bool { return false }, false, 0, 0, 1},
		{"without mounts either", func(string) bool { return false }, true, 0, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			reduced, err := reduce([]byte(spec), test.keep, test.drop)
			if err != nil {
				t.Fatal(err)
			}
			type edits struct {
				Hooks, Mounts, DeviceNodes []any
			}
			var got struct {
				Kind    string
				Devices []struct {
					Name           string
					ContainerEdits edits
				}
				ContainerEdits edits
			}
			if err := json.Unmarshal(reduced, &got); err != nil {
				t.Fatal(err)
			}
			device := got.Devices[0].ContainerEdits
			if got.Kind != "nvidia.com/gpu" || len(device.DeviceNodes) != 1 || len(device.Hooks) != test.device ||
				len(got.ContainerEdits.Hooks) != test.hooks || len(got.ContainerEdits.Mounts) != test.mounts {
				t.Errorf("%s", reduced)
			}
		})
	}
}
