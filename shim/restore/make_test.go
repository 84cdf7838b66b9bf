package restore

import (
	"reflect"
	"testing"
)

func TestContainerLabels(t *testing.T) {
	got := containerLabels(map[string]string{"a": "b", "nerdctl/name": "old", "nerdctl/state-dir": "/x", "nerdctl/platform": "linux/amd64", "containerd.io/restart.status": "running"}, "ns", "new", "r:1")
	want := map[string]string{"a": "b", "nerdctl/name": "new", "nerdctl/namespace": "ns", "nerdctl/platform": "linux/amd64", "io.cryo.reference": "r:1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("containerLabels = %v", got)
	}
}
