package image

import (
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestConfigNumbersAreBounded(t *testing.T) {
	list := func(one string, n int) string { return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]" }
	for name, c := range map[string]struct{ rest, want string }{
		"mounts":       {`"spec":{"mounts":` + list("{}", maxMounts+1) + `}`, "mounts"},
		"mounts twice": {`"spec":{"mounts":` + list("{}", 1) + `,"Mounts":` + list("{}", maxMounts+1) + `}`, "mounts"},
		"devices":      {`"spec":{"linux":{"devices":` + list("{}", maxDevices+1) + `}}`, "devices"},
		"device rules": {`"spec":{"linux":{"resources":{"devices":` + list("{}", maxDevices+1) + `}}}`, "devices"},
		"namespaces":   {`"spec":{"linux":{"namespaces":` + list("{}", maxNamespaces+1) + `}}`, "namespaces"},
		"CDI devices":  {`"gpu":{"engine":"driver","cdi":` + list(`"a"`, maxDevices+1) + `}`, "devices"},
		"processes":    {`"processes":` + list("{}", 5<<20), "values"},
		"paths":        {`"spec":{"mounts":` + list(`{"destination":"`+strings.Repeat("/a", 10)+`"}`, maxMounts) + `}`, "parts"},
		"GPU's paths":  {`"gpu":{"engine":"driver","mounts":` + list(`"`+strings.Repeat("/a", 10)+`"`, maxMounts) + `}`, "parts"},
		"a long name":  {`"container":{"id":"` + strings.Repeat("a", maxText+1) + `"}`, "name"},
		"after a text": {`"host":{"os":"\"\\"},"processes":` + list("{}", 5<<20), "values"},
		"at the limit": {`"spec":{"mounts":` + list("{}", maxMounts) + `,"linux":{"devices":` + list("{}", maxDevices) + `}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := []byte(`{"version":1,` + c.rest + `}`)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := parseConfig(b, "")
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
				t.Errorf("%d MiB were allocated", got>>20)
			}
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want damage that names %s", err, c.want)
			}
		})
	}
}
