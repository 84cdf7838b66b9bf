package restore

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/worker"
)

func TestCgroupsPath(t *testing.T) {
	for _, c := range []struct {
		old     string
		systemd bool
		want    string
	}{
		{"/default/old", false, "/ns/new"},
		{"/default/old", true, "/ns/new"},
		{"/", false, "/ns/new"},
		{"", true, ""},
		{"../../escape", false, "/ns/new"},
		{"system.slice:nerdctl:old", true, "system.slice:ns:new"},
		{"user.slice:nerdctl:old", true, "user.slice:ns:new"},
		{":cri-containerd:old", true, ":ns:new"},
		{"kubepods-burstable.slice:cri-containerd:old", true, "system.slice:ns:new"},
		{"../x.slice:a:b", true, "system.slice:ns:new"},
		{"system.slice:nerdctl:old", false, "/ns/new"},
		{"a:b:c:d", true, "/ns/new"},
	} {
		if got := cgroupsPath(c.old, "ns", "new", c.systemd); got != c.want {
			t.Errorf("cgroupsPath(%q, systemd %v) = %q, want %q", c.old, c.systemd, got, c.want)
		}
	}
	if got := cgroupsPath("a:b:c", "k8s:x", "n/1", true); got != "system.slice:k8s_x:n_1" {
		t.Errorf("a unit name of %q", got)
	}
}

func TestReplaceMounts(t *testing.T) {
	spec := &specs.Spec{Mounts: []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/data", Type: "bind", Source: "/old"},
		{Destination: "/more/", Source: "/old", Options: []string{"rbind"}},
	}}
	got, err := replaceMounts(spec, []worker.Mount{{Source: "/new", Destination: "/data"}, {Source: "/newer", Destination: "/more"}})
	if err != nil || !slices.Equal(got, []string{"/data", "/more/"}) || spec.Mounts[1].Source != "/new" || spec.Mounts[2].Source != "/newer" {
		t.Errorf("replaceMounts = %v, %v; %v", got, err, spec.Mounts)
	}
	for _, dst := range []string{"/proc", "/none"} {
		_, err := replaceMounts(spec, []worker.Mount{{Source: "/new", Destination: dst}})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(failure.Hint(err), "/data, /more/") {
			t.Errorf("%s: %v", dst, err)
		}
	}
	if spec.Mounts[0].Source != "proc" {
		t.Error("a mount that is no bind mount was changed")
	}
}

func TestJoinNetwork(t *testing.T) {
	own := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace}}}}
	if err := joinNetwork(own, "/run/netns/n"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("of its own: %v", err)
	}
	own.Linux.Namespaces[0].Path = "/run/netns/old"
	if err := joinNetwork(own, "/run/netns/n"); err != nil || own.Linux.Namespaces[0].Path != "/run/netns/n" {
		t.Errorf("of a path: %v, %v", err, own.Linux.Namespaces)
	}
}

func TestParseMount(t *testing.T) {
	good := worker.Mount{Source: "/new", Destination: "/data"}
	for _, c := range []struct {
		flag string
		want worker.Mount
		ok   bool
	}{
		{"type=bind,src=/new,dst=/data", good, true},
		{"source=/new,target=/data", good, true},
		{"type=bind,src=/new,destination=/data/", good, true},
		{`type=bind,"src=/a,b",dst=/data`, worker.Mount{Source: "/a,b", Destination: "/data"}, true},
		{"type=bind,src=new,dst=/data", worker.Mount{}, false},
		{"type=bind,src=/new", worker.Mount{}, false},
		{"type=tmpfs,dst=/data", worker.Mount{}, false},
		{"type=bind,src=/new,dst=/data,options=rbind:ro", worker.Mount{}, false},
		{"", worker.Mount{}, false},
		{`"`, worker.Mount{}, false},
	} {
		got, err := ParseMount(c.flag)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("ParseMount(%q) = %v, %v", c.flag, got, err)
		}
	}
}

func TestParseMountShort(t *testing.T) {
	m, err := ParseMount("/srv/data:/data/")
	if err != nil || m.Source != "/srv/data" || m.Destination != "/data" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := ParseMount("data:/data"); err == nil {
		t.Error("a source that is not absolute is taken")
	}
}
