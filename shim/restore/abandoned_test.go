package restore

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
	"github.com/cryo-project/cryo/shim/restore/restoretest"
)

func TestForgetIn(t *testing.T) {
	spec := restoretest.PlainSpec()
	cdi.Annotate(spec, []string{"nvidia.com/gpu=0"})
	spec.Annotations[gpu.MapAnnotation], spec.Annotations["mine"] = "x=y", "kept"
	packed, err := typeurl.MarshalAny(spec)
	if err != nil {
		t.Fatal(err)
	}
	c := containers.Container{Spec: packed}
	if err := forgetIn(&c); err != nil {
		t.Fatal(err)
	}
	var left specs.Spec
	if err := json.Unmarshal(c.Spec.GetValue(), &left); err != nil {
		t.Fatal(err)
	}
	if c.Spec.GetTypeUrl() != packed.GetTypeUrl() || !reflect.DeepEqual(left.Annotations, map[string]string{"mine": "kept"}) {
		t.Errorf("left %v of %s", left.Annotations, c.Spec.GetTypeUrl())
	}
}
