package gpu

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
)

// The CDI files of testdata are what nvidia-ctk 1.20 writes for a host with two GPUs, but for hostPath: nodes that every
// machine has stand in for those of the driver.
func two() *CDI { return OpenCDI("testdata/two") }

// container is a specification with something of everything that devices add to.
func container() *specs.Spec {
	null, minor := int64(1), int64(3)
	return &specs.Spec{
		Process: &specs.Process{Env: []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"}, User: specs.User{AdditionalGids: []uint32{10}}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/usr/share/data", Type: "bind", Source: "/srv/data", Options: []string{"rbind"}},
		},
		Hooks: &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/usr/bin/own"}}},
		Linux: &specs.Linux{
			Devices: []specs.LinuxDevice{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
				{Allow: false, Access: "rwm"}, {Allow: true, Type: "c", Major: &null, Minor: &minor, Access: "rwm"},
			}},
		},
	}
}

func inject(t *testing.T, h *CDI, names ...string) *specs.Spec {
	t.Helper()
	spec := container()
	if err := h.Inject(spec, names); err != nil {
		t.Fatal(err)
	}
	return spec
}

// text is a specification to compare; the order of mounts and variables is CDI's to change.
func text(t *testing.T, spec *specs.Spec) string {
	t.Helper()
	slices.Sort(spec.Process.Env)
	slices.SortFunc(spec.Mounts, func(a, b specs.Mount) int { return cmp.Compare(a.Destination, b.Destination) })
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestFind(t *testing.T) {
	const a, b = "nvidia.com/gpu=0", "nvidia.com/gpu=1"
	for name, c := range map[string]struct{ injected, want []string }{
		"none":           {nil, nil},
		"first":          {[]string{a}, []string{a}},
		"second":         {[]string{b}, []string{b}},
		"by UUID":        {[]string{"nvidia.com/gpu=GPU-11111111-0000-4000-8000-000000000001"}, []string{b}},
		"both":           {[]string{b, a}, []string{a, b}},
		"all":            {[]string{"nvidia.com/gpu=all"}, []string{a, b}},
		"one by another": {[]string{a, "nvidia.com/gpu=GPU-00000000-0000-4000-8000-000000000000"}, []string{a}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := container()
			if err := two().Inject(spec, c.injected); err != nil {
				t.Fatal(err)
			}
			if got := two().Find(spec); !slices.Equal(got, c.want) {
				t.Errorf("Find = %v", got)
			}
		})
	}
}

func TestFindWantsAllEdits(t *testing.T) {
	for name, change := range map[string]func(*specs.Spec){
		"a mount less":     func(s *specs.Spec) { s.Mounts = slices.DeleteFunc(s.Mounts, at("/usr/bin/nvidia-smi")) },
		"another source":   func(s *specs.Spec) { s.Mounts[slices.IndexFunc(s.Mounts, at("/usr/bin/nvidia-smi"))].Source = "/x" },
		"a node less":      func(s *specs.Spec) { s.Linux.Devices = s.Linux.Devices[:1] },
		"another number":   func(s *specs.Spec) { s.Linux.Devices[1].Minor += 7 },
		"no rules":         func(s *specs.Spec) { s.Linux.Resources = nil },
		"no environment":   func(s *specs.Spec) { s.Process.Env = nil },
		"no hooks":         func(s *specs.Spec) { s.Hooks = nil },
		"a hook is other":  func(s *specs.Spec) { s.Hooks.CreateRuntime[0].Args = nil },
		"no group":         func(s *specs.Spec) { s.Process.User.AdditionalGids = nil },
		"nothing of Linux": func(s *specs.Spec) { s.Linux = nil },
	} {
		t.Run(name, func(t *testing.T) {
			spec := inject(t, two(), "nvidia.com/gpu=0")
			change(spec)
			if got := two().Find(spec); got != nil {
				t.Errorf("Find = %v", got)
			}
		})
	}
}

func at(destination string) func(specs.Mount) bool {
	return func(m specs.Mount) bool { return m.Destination == destination }
}

func TestFindPartsAndWholes(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "parts.json", `{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[
		{"name":"mig0:0","containerEdits":{"deviceNodes":[`+node("/dev/nvidia-caps/nvidia-cap3")+`]}},
		{"name":"0:0","containerEdits":{"deviceNodes":[`+node("/dev/nvidia0")+`,`+node("/dev/nvidia-caps/nvidia-cap3")+`]}},
		{"name":"0:1","containerEdits":{"deviceNodes":[`+node("/dev/nvidia0")+`,`+node("/dev/nvidia-caps/nvidia-cap4")+`]}},
		{"name":"settings","containerEdits":{"env":["A=b"]}}]}`)
	spec := &specs.Spec{}
	h := OpenCDI(dir)
	if err := h.Inject(spec, []string{"nvidia.com/gpu=0:0", "nvidia.com/gpu=settings"}); err != nil {
		t.Fatal(err)
	}
	if got := h.Find(spec); !slices.Equal(got, []string{"nvidia.com/gpu=0:0"}) {
		t.Errorf("Find = %v", got)
	}
}

func node(path string) string {
	return `{"path":"` + path + `","type":"c","major":195,"minor":1}`
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestStripUndoesInject(t *testing.T) {
	for _, names := range [][]string{{"nvidia.com/gpu=0"}, {"nvidia.com/gpu=0", "nvidia.com/gpu=1"}, {"nvidia.com/gpu=all"}} {
		before := container()
		before.Process.Env = before.Process.Env[:1] // the variable that the devices set is not given back
		want := text(t, before)
		spec := inject(t, two(), names...)
		e, err := two().Edits(two().Find(spec))
		if err != nil {
			t.Fatal(err)
		}
		e.Strip(spec)
		if got := text(t, spec); got != want {
			t.Errorf("%v:\n%s\n%s", names, got, want)
		}
	}
}

func TestInjectTwiceIsOnce(t *testing.T) {
	spec := inject(t, two(), "nvidia.com/gpu=0", "nvidia.com/gpu=1")
	once := text(t, spec)
	if err := two().Inject(spec, []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}); err != nil {
		t.Fatal(err)
	}
	if got := text(t, spec); got != once {
		t.Errorf("\n%s\n%s", got, once)
	}
}

// TestAnotherHost: edits travel with a snapshot, and are replaced by those of a host that never knew them.
func TestAnotherHost(t *testing.T) {
	spec := inject(t, two(), "nvidia.com/gpu=1")
	e, err := two().Edits(two().Find(spec))
	if err != nil {
		t.Fatal(err)
	}
	record, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var arrived CDIEdits
	if err := json.Unmarshal(record, &arrived); err != nil {
		t.Fatal(err)
	}
	upgraded := OpenCDI("testdata/upgraded")
	if got := upgraded.Find(spec); got != nil {
		t.Errorf("the other host finds %v", got)
	}
	arrived.Strip(spec)
	if err := upgraded.Inject(spec, []string{"nvidia.com/gpu=0"}); err != nil {
		t.Fatal(err)
	}
	if got, want := text(t, spec), text(t, inject(t, upgraded, "nvidia.com/gpu=0")); strings.Contains(got, "580.159") || len(got) != len(want) {
		t.Errorf("\n%s\n%s", got, want)
	}
	if got := DeviceMinors(spec); !slices.Equal(got, []int{0}) {
		t.Errorf("Minors = %v", got)
	}
}

func TestValidate(t *testing.T) {
	many := make([]string, maxNames+1)
	for i := range many {
		many[i] = "nvidia.com/gpu=" + strings.Repeat("a", 1+i/26) + string(rune('a'+i%26))
	}
	for name, names := range map[string][]string{
		"empty": {""}, "no vendor": {"gpu=0"}, "no name": {"nvidia.com/gpu="}, "a path": {"/etc/cdi/nvidia.yaml"}, "path as name": {"nvidia.com/gpu=../0"},
		"path as class": {"nvidia.com/../gpu=0"}, "newline": {"nvidia.com/gpu=0\n"}, "comma": {"nvidia.com/gpu=0,1"}, "space": {"nvidia.com/gpu=0 1"},
		"escape": {"nvidia.com/gpu=\x1b[2J"}, "zero byte": {"nvidia.com/gpu=0\x000"}, "two names": {"nvidia.com/gpu=0=1"},
		"long": {"nvidia.com/gpu=" + strings.Repeat("0", maxName)}, "twice": {"nvidia.com/gpu=0", "nvidia.com/gpu=0"}, "many": many,
		"not ASCII": {"nvidia.com/gpu=é"}, "annotation": {"cdi.k8s.io/x: nvidia.com/gpu=all"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := container()
			for _, err := range []error{ValidateDevices(names), two().Inject(spec, names)} {
				if !errdefs.IsInvalidArgument(err) || failure.Hint(err) == "" || strings.ContainsAny(err.Error(), "\n\x1b") {
					t.Errorf("%v", err)
				}
			}
			if text(t, spec) != text(t, container()) {
				t.Error("something was injected")
			}
		})
	}
	if err := ValidateDevices([]string{"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1-2", "amd.com/gpu=mig0:0", "nvidia.com/pgpu=a.b_c"}); err != nil {
		t.Error(err)
	}
}

func TestMissing(t *testing.T) {
	empty := t.TempDir()
	damaged := t.TempDir()
	write(t, damaged, "nvidia.yaml", "cdiVersion: 0.7.0\nkind: nvidia.com/gpu\nunknown: 1\n")
	for name, c := range map[string]struct {
		dirs       []string
		says, hint string
	}{
		"no files":   {[]string{empty}, "no CDI device nvidia.com/gpu=7", "nvidia-ctk cdi generate --output=" + empty},
		"others":     {[]string{"testdata/two"}, "no CDI device nvidia.com/gpu=7", "--device: nvidia.com/gpu=0, "},
		"damaged":    {[]string{damaged}, "nvidia.yaml defines nothing: ", "nvidia-ctk cdi generate"},
		"none there": {[]string{"/no/such/directory"}, "no CDI device", "nvidia-ctk cdi generate"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := container()
			err := OpenCDI(c.dirs...).Inject(spec, []string{"nvidia.com/gpu=7"})
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.says) || !strings.Contains(failure.Hint(err), c.hint) {
				t.Errorf("%v; %v", err, failure.Hint(err))
			}
			if text(t, spec) != text(t, container()) {
				t.Error("something was injected")
			}
		})
	}
}

func TestLaterDirectoriesWin(t *testing.T) {
	over := OpenCDI("testdata/two", "testdata/upgraded")
	spec := container()
	if err := over.Inject(spec, []string{"nvidia.com/gpu=0"}); err != nil {
		t.Fatal(err)
	}
	if got := text(t, spec); !strings.Contains(got, "580.173") || strings.Contains(got, "580.159") {
		t.Errorf("injected %s", got)
	}
}

func TestConflictsDefineNothing(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.json", "b.json"} {
		write(t, dir, name, `{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"deviceNodes":[`+node("/dev/nvidia0")+`]}}]}`)
	}
	err := OpenCDI(dir).Inject(container(), []string{"nvidia.com/gpu=0"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "conflicting device") {
		t.Errorf("%v", err)
	}
}

func TestStaleFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "nvidia.json", `{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia-none"}]}}]}`)
	spec := container()
	err := OpenCDI(dir).Inject(spec, []string{"nvidia.com/gpu=0"})
	if !errdefs.IsFailedPrecondition(err) || failure.Hint(err) == "" || !strings.Contains(err.Error(), "/dev/nvidia-none") {
		t.Errorf("%v", err)
	}
	if text(t, spec) != text(t, container()) || OpenCDI(dir).Find(spec) != nil {
		t.Error("something was injected or found")
	}
}

// TestStripOnlyTakes: edits come with a snapshot and may be anybody's.
func TestStripOnlyTakes(t *testing.T) {
	hostile := CDIEdits{
		Rules:   []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		Mounts:  []specs.Mount{{Destination: "/new", Source: "/etc"}},
		Devices: []specs.LinuxDevice{{Path: "/dev/mem", Type: "c", Major: 1, Minor: 1}},
		Hooks:   &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh"}}},
		Env:     []string{"LD_PRELOAD=/x"},
		GIDs:    []uint32{0},
	}
	spec := container()
	hostile.Strip(spec)
	if got, want := text(t, spec), text(t, container()); got != want {
		t.Errorf("\n%s\n%s", got, want)
	}
	hostile.Strip(&specs.Spec{})
}

func TestDisplace(t *testing.T) {
	spec := container()
	want := text(t, spec)
	old, other := int64(195), int64(7)
	spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/nvidia7", Type: "c", Major: old, Minor: other})
	spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &old, Minor: &other, Access: "rw"})
	spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/usr/bin/nvidia-smi/", Type: "bind", Source: "/opt/old"}, specs.Mount{Destination: "/dev/nvidia-uvm", Type: "bind", Source: "/dev/nvidia-uvm"})
	e, err := two().Edits([]string{"nvidia.com/gpu=0"})
	if err != nil {
		t.Fatal(err)
	}
	before := text(t, spec)
	CDIEdits{Env: e.Env}.Displace(spec)
	if got := text(t, spec); got != before {
		t.Errorf("edits without nodes displaced something: %s", got)
	}
	e.Displace(spec)
	if got := text(t, spec); got != want {
		t.Errorf("\n%s\n%s", got, want)
	}
	e.Displace(&specs.Spec{})
}

func TestAnnotation(t *testing.T) {
	for _, names := range [][]string{nil, {"nvidia.com/gpu=0"}, {"nvidia.com/gpu=0", "nvidia.com/gpu=1"}} {
		var spec specs.Spec
		if _, noted, err := AnnotatedDevices(&spec); noted || err != nil {
			t.Errorf("of nothing: %v, %v", noted, err)
		}
		AnnotateDevices(&spec, names)
		if got, noted, err := AnnotatedDevices(&spec); !slices.Equal(got, names) || !noted || err != nil {
			t.Errorf("Annotated = %v, %v, %v", got, noted, err)
		}
	}
	for _, text := range []string{",", "nvidia.com/gpu=0,", "all", "nvidia.com/gpu=0,nvidia.com/gpu=0", "nvidia.com/gpu=0\n"} {
		if _, _, err := AnnotatedDevices(&specs.Spec{Annotations: map[string]string{DevicesAnnotation: text}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestHasGPU(t *testing.T) {
	device := func(path string) *specs.Spec {
		return &specs.Spec{Linux: &specs.Linux{Devices: []specs.LinuxDevice{{Path: path}}}}
	}
	mount := func(source, destination string) *specs.Spec {
		return &specs.Spec{Mounts: []specs.Mount{{Source: source, Destination: destination}}}
	}
	for _, c := range []struct {
		spec   *specs.Spec
		nvidia bool
	}{
		{&specs.Spec{}, false}, {device("/dev/null"), false}, {device("/dev/nvidia0"), true}, {device("/dev/nvidiactl"), true},
		{device("/dev/nvidia-uvm"), true}, {device("//dev/./nvidia12"), true}, {device("/dev/kfd"), false},
		{device("/dev/dri/renderD128"), false}, {mount("/dev/nvidia0", "/dev/nvidia0"), true}, {mount("/x", "/dev/kfd"), false},
		{mount("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"), false},
	} {
		if HasNVIDIA(c.spec) != c.nvidia {
			t.Errorf("%v: %v", c.spec, HasNVIDIA(c.spec))
		}
	}
}

func TestMinors(t *testing.T) {
	spec := &specs.Spec{Linux: &specs.Linux{}}
	for _, p := range []string{"/dev/nvidia10", "/dev/nvidiactl", "/dev/nvidia2", "/dev/null", "/dev//nvidia2", "/dev/nvidia-1", "/dev/nvidia+1", "/dev/nvidia99999999999999999999", "/dev/nvidia", "5"} {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: p})
	}
	spec.Mounts = []specs.Mount{{Source: "/dev/nvidia3", Destination: "/dev/nvidia3"}, {Source: "/dev/nvidia4", Destination: "/x"}}
	if got := DeviceMinors(spec); !slices.Equal(got, []int{2, 3, 10}) {
		t.Errorf("Minors = %v", got)
	}
	if got := DeviceMinors(&specs.Spec{}); got != nil {
		t.Errorf("Minors = %v", got)
	}
}

// FuzzStrip: whatever edits a snapshot brings, a container has nothing afterwards that it did not have before.
func FuzzStrip(f *testing.F) {
	e, err := two().Edits([]string{"nvidia.com/gpu=all"})
	if err != nil {
		f.Fatal(err)
	}
	known, err := json.Marshal(e)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(known)
	f.Add([]byte(`{"mounts":[{"destination":"/proc","source":"proc"}],"rules":[{"allow":false,"access":"rwm"}],"hooks":{"poststop":[{"path":"/bin/sh"}]}}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		var e CDIEdits
		if json.Unmarshal(record, &e) != nil {
			return
		}
		spec := container()
		e.Strip(spec)
		had := edits(container())
		left := edits(spec)
		if left.Hooks != nil && !containsHooks(had.Hooks, left.Hooks) {
			t.Errorf("hooks %v", left.Hooks)
		}
		left.Hooks, had.Hooks = nil, nil
		if !left.In(container()) {
			t.Errorf("left %+v of %+v", left, had)
		}
		deny := func(r specs.LinuxDeviceCgroup) bool { return !r.Allow }
		if !reflect.DeepEqual(slices.IndexFunc(left.Rules, deny), slices.IndexFunc(had.Rules, deny)) {
			t.Error("a denial is gone")
		}
	})
}
