package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/config"
)

func TestGPUsOf(t *testing.T) {
	for _, test := range []struct {
		name   string
		spec   specs.Spec
		nvidia bool
	}{
		{"none", specs.Spec{Linux: &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/fuse"}}}}, false},
		{"no Linux", specs.Spec{}, false},
		{"NVIDIA", specs.Spec{Linux: &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/nvidia0"}}}}, true},
		{"AMD", specs.Spec{Linux: &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/kfd"}}}}, false},
		{"the host's /dev", specs.Spec{Mounts: []specs.Mount{{Destination: "/dev", Source: "/dev", Type: "bind"}}}, true},
		{"its own /dev", specs.Spec{Mounts: []specs.Mount{{Destination: "/dev", Source: "tmpfs", Type: "tmpfs"}}}, false},
	} {
		if g := gpusOf(&test.spec); g.nvidia != test.nvidia {
			t.Errorf("%s: got %+v", test.name, g)
		}
	}
}

func TestGPUChoices(t *testing.T) {
	s := &service{config: config.Default()}
	for _, test := range []struct {
		name        string
		annotations map[string]string
		options     checkpoint.Options
		timeout     time.Duration
		force       []string
		err         bool
	}{
		{name: "configured", timeout: 10 * time.Second},
		{name: "by annotation", annotations: map[string]string{gpu.TimeoutAnnotation: "90s", gpu.ForceAnnotation: "gpu-peer, gpu-mps"}, timeout: 90 * time.Second, force: []string{"gpu-peer", "gpu-mps"}},
		{name: "by the command", annotations: map[string]string{gpu.TimeoutAnnotation: "90s", gpu.ForceAnnotation: "gpu-peer"},
			options: checkpoint.Options{GPUTimeout: 0.5, Force: []string{"gpu-mps"}}, timeout: 500 * time.Millisecond, force: []string{"gpu-peer", "gpu-mps"}},
		{name: "no duration", annotations: map[string]string{gpu.TimeoutAnnotation: "90"}, err: true},
		{name: "no time", annotations: map[string]string{gpu.TimeoutAnnotation: "0s"}, err: true},
	} {
		timeout, force, err := s.gpuChoices(test.annotations, test.options)
		if test.err {
			if !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("%s: got %v", test.name, err)
			}
			continue
		}
		if timeout != test.timeout || !slices.Equal(force, test.force) || err != nil {
			t.Errorf("%s: got %s, %v, %v", test.name, timeout, force, err)
		}
	}
}

func TestRenumber(t *testing.T) {
	major, minor, all := int64(510), int64(0), int64(195)
	spec := &specs.Spec{Linux: &specs.Linux{
		Devices: []specs.LinuxDevice{{Path: "/dev/nvidia-uvm", Type: "c", Major: 510}, {Path: "/dev/nvidia0", Type: "c", Major: 195}, {Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}},
		Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
			{Allow: false, Access: "rwm"}, {Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"}, {Allow: true, Type: "c", Major: &all, Access: "rwm"},
		}},
	}}
	host := func(path string) (specs.LinuxDevice, error) {
		switch path {
		case "/dev/nvidia-uvm":
			return specs.LinuxDevice{Major: 511}, nil
		case "/dev/nvidia0":
			return specs.LinuxDevice{Major: 196}, nil
		}
		return specs.LinuxDevice{}, errors.New("asked for " + path)
	}
	if err := renumber(spec, host); err != nil {
		t.Fatal(err)
	}
	if d := spec.Linux.Devices; d[0].Major != 511 || d[1].Major != 196 || d[2].Major != 10 {
		t.Errorf("devices %+v", d)
	}
	rules := spec.Linux.Resources.Devices
	if len(rules) != 4 || *rules[1].Major != 511 || rules[1].Access != "rw" || *rules[2].Major != 195 || *rules[3].Major != 196 || !rules[3].Allow {
		t.Errorf("rules %+v", rules)
	}
}

// TestBringGPUs gives a stock client's specification the CDI devices of this host, and leaves the command's own alone.
func TestBringGPUs(t *testing.T) {
	dir := t.TempDir()
	file := `{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"env":["NEW=1"],"mounts":[{"hostPath":"/lib/new","containerPath":"/lib/driver"}]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "nvidia.json"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.GPU.CDI = []string{dir}
	s := &service{config: c}
	old := specs.Mount{Destination: "/lib/driver", Source: "/lib/old"}
	record := &gpu.Record{GPU: image.GPU{Engine: "driver", CDI: []string{"nvidia.com/gpu=0"}}, Edits: &gpu.CDIEdits{Env: []string{"OLD=1"}, Mounts: []specs.Mount{old}}}
	spec := specs.Spec{Process: &specs.Process{Env: []string{"A=B", "OLD=1"}}, Linux: &specs.Linux{}, Mounts: []specs.Mount{old, {Destination: "/data", Source: "/data"}}}
	for _, told := range []bool{false, true} {
		b := bundle{dir: t.TempDir()}
		if told {
			spec.Annotations = map[string]string{gpu.DevicesAnnotation: ""}
		}
		data, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		data = []byte(strings.Replace(string(data), "{", `{"later":1,`, 1))
		if err := os.WriteFile(filepath.Join(b.dir, specFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.changeSpec(func(spec *specs.Spec) error { return s.bringGPUs(&container{bundle: b}, spec, record) }); err != nil {
			t.Fatal(err)
		}
		got, err := b.spec()
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(b.dir, specFile))
		if err != nil || !strings.Contains(string(text), `"later":1`) {
			t.Errorf("an unknown member is lost: %s, %v", text, err)
		}
		want, source := []string{"A=B", "NEW=1"}, "/lib/new"
		if told {
			want, source = []string{"A=B", "OLD=1"}, "/lib/old"
		}
		if !slices.Equal(got.Process.Env, want) || len(got.Mounts) != 2 ||
			!slices.ContainsFunc(got.Mounts, func(m specs.Mount) bool { return m.Source == source }) {
			t.Errorf("told %v: got %v, %+v", told, got.Process.Env, got.Mounts)
		}
	}
	record.CDI = []string{"nvidia.com/gpu=7"}
	b := bundle{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(b.dir, specFile), []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.changeSpec(func(spec *specs.Spec) error { return s.bringGPUs(&container{bundle: b}, spec, record) }); !strings.Contains(fmt.Sprint(err), "no CDI device nvidia.com/gpu=7") {
		t.Errorf("got %v", err)
	}
	// What a client has given the container that it wants restored stays.
	if err := b.changeSpec(func(spec *specs.Spec) error {
		return s.bringGPUs(&container{bundle: b, annotated: &annotatedRestore{}}, spec, record)
	}); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(b.dir, specFile)); string(data) != "{}" || err != nil {
		t.Errorf("its specification is %s, %v", data, err)
	}
}

// TestUngranted: a record beside the images gives a container no device that its specification does not have.
func TestUngranted(t *testing.T) {
	dir := t.TempDir()
	node := func(at string) string {
		return `{"path":"` + at + `","type":"c","major":1,"minor":3,"hostPath":"/dev/null"}`
	}
	file := `{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[
		{"name":"0","containerEdits":{"deviceNodes":[` + node("/dev/nvidia0") + `,` + node("/dev/nvidiactl") + `]}},
		{"name":"all","containerEdits":{"deviceNodes":[` + node("/dev/nvidia0") + `,` + node("/dev/nvidia1") + `]}},
		{"name":"disk","containerEdits":{"deviceNodes":[` + node("/dev/vda") + `]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "nvidia.json"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.GPU.CDI = []string{dir}
	s := &service{config: c}
	for _, test := range []struct {
		has, asks string
		refused   bool
	}{{"", "0", true}, {"/dev/nvidia0", "0", false}, {"/dev/nvidia0", "all", true}, {"/dev/nvidia0", "disk", true}, {"", "disk", true}} {
		spec := specs.Spec{Linux: &specs.Linux{}, Process: &specs.Process{}}
		if test.has != "" {
			spec.Linux.Devices = []specs.LinuxDevice{{Path: test.has, Type: "c", Major: 1, Minor: 3}}
		}
		b := bundle{dir: t.TempDir()}
		data, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.dir, specFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		err = b.changeSpec(func(spec *specs.Spec) error {
			return s.giveCDI(spec, &gpu.Record{GPU: image.GPU{Engine: "driver", CDI: []string{"nvidia.com/gpu=" + test.asks}}})
		})
		if errdefs.IsPermissionDenied(err) != test.refused || !test.refused && err != nil {
			t.Errorf("with %q, asked for %q: %v", test.has, test.asks, err)
		}
		if text, _ := os.ReadFile(filepath.Join(b.dir, specFile)); test.refused && string(text) != string(data) {
			t.Errorf("the specification has become %s", text)
		}
	}
}
