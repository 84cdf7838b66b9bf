package main

import (
	"testing"

	"github.com/cryo-project/cryo/shim/restorer"
)

func TestParseMount(t *testing.T) {
	good := restorer.Mount{Source: "/new", Destination: "/data"}
	for _, c := range []struct {
		flag string
		want restorer.Mount
		ok   bool
	}{
		{"type=bind,src=/new,dst=/data", good, true},
		{"source=/new,target=/data", good, true},
		{"type=bind,src=/new,destination=/data/", good, true},
		{`type=bind,"src=/a,b",dst=/data`, restorer.Mount{Source: "/a,b", Destination: "/data"}, true},
		{"type=bind,src=new,dst=/data", restorer.Mount{}, false},
		{"type=bind,src=/new", restorer.Mount{}, false},
		{"type=tmpfs,dst=/data", restorer.Mount{}, false},
		{"type=bind,src=/new,dst=/data,options=rbind:ro", restorer.Mount{}, false},
		{"", restorer.Mount{}, false},
		{`"`, restorer.Mount{}, false},
	} {
		got, err := parseMount(c.flag)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("parseMount(%q) = %v, %v", c.flag, got, err)
		}
	}
}
