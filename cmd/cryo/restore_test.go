package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
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

func TestParseMount(t *testing.T) {
	good := replacement{"/new", "/data"}
	for _, c := range []struct {
		flag string
		want replacement
		ok   bool
	}{
		{"type=bind,src=/new,dst=/data", good, true},
		{"source=/new,target=/data", good, true},
		{"type=bind,src=/new,destination=/data/", good, true},
		{`type=bind,"src=/a,b",dst=/data`, replacement{"/a,b", "/data"}, true},
		{"type=bind,src=new,dst=/data", replacement{}, false},
		{"type=bind,src=/new", replacement{}, false},
		{"type=tmpfs,dst=/data", replacement{}, false},
		{"type=bind,src=/new,dst=/data,options=rbind:ro", replacement{}, false},
		{"", replacement{}, false},
		{`"`, replacement{}, false},
	} {
		got, err := parseMount(c.flag)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("parseMount(%q) = %v, %v", c.flag, got, err)
		}
	}
}

func TestReplaceMounts(t *testing.T) {
	spec := &specs.Spec{Mounts: []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/data", Type: "bind", Source: "/old"},
		{Destination: "/more/", Source: "/old", Options: []string{"rbind"}},
	}}
	got, err := replaceMounts(spec, []replacement{{"/new", "/data"}, {"/newer", "/more"}})
	if err != nil || !slices.Equal(got, []string{"/data", "/more/"}) || spec.Mounts[1].Source != "/new" || spec.Mounts[2].Source != "/newer" {
		t.Errorf("replaceMounts = %v, %v; %v", got, err, spec.Mounts)
	}
	for _, dst := range []string{"/proc", "/none"} {
		_, err := replaceMounts(spec, []replacement{{"/new", dst}})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(hintOf(err), "/data, /more/") {
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

func TestContainerLabels(t *testing.T) {
	got := containerLabels(map[string]string{"a": "b", "nerdctl/name": "old", "nerdctl/state-dir": "/x", "nerdctl/platform": "linux/amd64", "containerd.io/restart.status": "running"}, "ns", "new", "sha256:1", "r:1")
	want := map[string]string{"a": "b", "nerdctl/name": "new", "nerdctl/namespace": "ns", "nerdctl/platform": "linux/amd64", "io.cryo.snapshot": "sha256:1", "io.cryo.reference": "r:1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("containerLabels = %v", got)
	}
}

func TestSources(t *testing.T) {
	d := digest.FromString("x")
	c := image.Container{Image: "docker.io/library/redis:7", ImageDigest: d}
	for _, tc := range []struct {
		ref  string
		want []string
	}{
		{"registry.example.com/snapshots/redis:warm", []string{"registry.example.com/snapshots/redis@" + d.String(), "docker.io/library/redis@" + d.String()}},
		{"redis:warm", []string{"docker.io/library/redis@" + d.String()}},
		{"sha256:" + d.Encoded(), []string{"docker.io/library/redis@" + d.String()}},
	} {
		if got := sources(tc.ref, c); !slices.Equal(got, tc.want) {
			t.Errorf("sources(%s) = %v", tc.ref, got)
		}
	}
	if got := sources("r.example.com/a:b", image.Container{Image: "\x00", ImageDigest: d}); len(got) != 1 {
		t.Errorf("with nonsense as the image: %v", got)
	}
}

func TestPreferred(t *testing.T) {
	all := []images.Image{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	if got := preferred(all, "c"); got[0].Name != "c" || len(got) != 3 {
		t.Errorf("preferred = %v", got)
	}
	if got := preferred(nil, "c"); got != nil {
		t.Errorf("preferred = %v", got)
	}
}

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

func TestOurShim(t *testing.T) {
	for runtime, want := range map[string]bool{
		"io.containerd.cryo.v1": true, "io.containerd.runc.cryo.v1": true, "/usr/local/bin/containerd-shim-cryo-v1": true,
		"io.containerd.runc.v2": false, "io.containerd.kata.v2": false,
	} {
		if got := ourShim(runtime, 1); got != want {
			t.Errorf("ourShim(%s) = %v", runtime, got)
		}
	}
}

// TestOptionsFor: what the user gives for the registry of the snapshot goes to no other.
func TestOptionsFor(t *testing.T) {
	given := registry.Options{Username: "joe", Password: "secret", PlainHTTP: true, Insecure: true}
	for other, same := range map[string]bool{
		"r.example.com/c@" + digest.FromString("x").String(): true,
		"evil.example.com/a:b":                               false,
		"r.example.com.evil.org/a:b":                         false,
		"r.example.com:5000/a:b":                             false,
		"a:b":                                                false,
		"\x00":                                               false,
	} {
		if got := optionsFor(given, "r.example.com/a:b", other); (got.Username != "") != same || got.PlainHTTP != same || got.Insecure != same || (got.Password != "") != same {
			t.Errorf("%s gets %+v", other, got)
		}
	}
}
