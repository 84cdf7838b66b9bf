package main

import (
	"reflect"
	"testing"

	"github.com/cryo-project/cryo/shim/restore"
)

func TestParseMount(t *testing.T) {
	good := restore.Mount{Source: "/new", Destination: "/data"}
	for _, c := range []struct {
		flag string
		want restore.Mount
		ok   bool
	}{
		{"type=bind,src=/new,dst=/data", good, true},
		{"source=/new,target=/data", good, true},
		{"type=bind,src=/new,destination=/data/", good, true},
		{`type=bind,"src=/a,b",dst=/data`, restore.Mount{Source: "/a,b", Destination: "/data"}, true},
		{"type=bind,src=new,dst=/data", restore.Mount{}, false},
		{"type=bind,src=/new", restore.Mount{}, false},
		{"type=tmpfs,dst=/data", restore.Mount{}, false},
		{"type=bind,src=/new,dst=/data,options=rbind:ro", restore.Mount{}, false},
		{"", restore.Mount{}, false},
		{`"`, restore.Mount{}, false},
	} {
		got, err := parseMount(c.flag)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("parseMount(%q) = %v, %v", c.flag, got, err)
		}
	}
}

func TestContainerLabels(t *testing.T) {
	got := containerLabels(map[string]string{"a": "b", "nerdctl/name": "old", "nerdctl/state-dir": "/x", "nerdctl/platform": "linux/amd64", "containerd.io/restart.status": "running"}, "ns", "new", "sha256:1", "r:1")
	want := map[string]string{"a": "b", "nerdctl/name": "new", "nerdctl/namespace": "ns", "nerdctl/platform": "linux/amd64", "io.cryo.snapshot": "sha256:1", "io.cryo.reference": "r:1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("containerLabels = %v", got)
	}
}
