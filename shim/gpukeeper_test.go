package shim

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/library"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/worker"
)

// pidPath is where, in annotations of a test, the path of the PID namespace is.
const pidPath = "pid"

// engineBundle is a container with a GPU, whose rootfs has these files.
func engineBundle(t *testing.T, annotations map[string]string, files ...string) *container {
	t.Helper()
	dir := t.TempDir()
	for _, name := range append(files, "etc/motd") {
		path := filepath.Join(dir, "rootfs", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	data, err := json.Marshal(specs.Spec{
		Annotations: annotations, Process: &specs.Process{Env: []string{"PATH=/bin"}}, Root: &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}}, Linux: &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/nvidia0"}}, Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: annotations[pidPath]}}},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, specFile), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &container{bundle: bundle{dir: dir}, gpus: gpus{nvidia: true}}
}

// hasLibrary tells whether a container's programs get the library.
func hasLibrary(t *testing.T, c *container) bool {
	t.Helper()
	spec, err := c.bundle.spec()
	if err != nil {
		t.Fatal(err)
	}
	mounted := slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == library.Inner })
	if preloaded := slices.Contains(spec.Process.Env, "LD_PRELOAD="+library.Inner); preloaded != mounted {
		t.Errorf("mounted is %v, preloaded %v", mounted, preloaded)
	}
	return mounted
}

// hostLibrary gives this host a library.
func hostLibrary(t *testing.T) digest.Digest {
	t.Helper()
	path := filepath.Join(t.TempDir(), library.File)
	if err := os.WriteFile(path, []byte("library"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(library.Variable, path)
	return digest.FromString("library")
}

func TestGiveLibrary(t *testing.T) {
	hostLibrary(t)
	keeper := map[string]string{gpu.EngineAnnotation: image.KeeperEngine}
	for name, test := range map[string]struct {
		configured, annotation string
		plain                  bool   // no GPU
		pid                    string // path of the PID namespace that it shares
		files                  []string
		given, fallback, wrong bool
	}{
		"configured driver":       {configured: image.DriverEngine},
		"configured keeper":       {configured: image.KeeperEngine, given: true},
		"annotation wins":         {configured: image.KeeperEngine, annotation: image.DriverEngine},
		"annotation":              {configured: image.DriverEngine, annotation: image.KeeperEngine, given: true},
		"shared processes":        {configured: image.KeeperEngine, pid: "/proc/1/ns/pid", fallback: true},
		"shared processes, asked": {configured: image.DriverEngine, annotation: image.KeeperEngine, pid: "/proc/1/ns/pid", given: true},
		"without a GPU":           {configured: image.KeeperEngine, plain: true},
		"an image with musl":      {configured: image.KeeperEngine, files: []string{"lib/ld-musl-x86_64.so.1"}, fallback: true},
		"an engine that is not":   {configured: image.DriverEngine, annotation: "fast", wrong: true},
		"an annotation of others": {configured: image.DriverEngine, annotation: "", wrong: true},
	} {
		annotations := map[string]string{pidPath: test.pid}
		if test.annotation != "" || test.wrong {
			annotations[gpu.EngineAnnotation] = test.annotation
		}
		c := engineBundle(t, annotations, test.files...)
		c.gpus.nvidia = !test.plain
		s := &service{config: config.Config{GPU: config.GPU{Engine: test.configured}}}
		err := s.giveLibrary(t.Context(), c, &taskAPI.CreateTaskRequest{ID: "c", Bundle: c.bundle.dir})
		if test.wrong != errors.Is(err, errdefs.ErrInvalidArgument) || !test.wrong && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if hasLibrary(t, c) != test.given || (c.gpus.library != nil) != test.given || (c.gpus.fallback != "") != test.fallback {
			t.Errorf("%s: got %+v", name, c.gpus)
		}
	}
	t.Setenv(library.Variable, "/nowhere/"+library.File)
	c := engineBundle(t, keeper)
	if err := (&service{}).giveLibrary(t.Context(), c, &taskAPI.CreateTaskRequest{Bundle: c.bundle.dir}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without a library: %v", err)
	}
	c = engineBundle(t, nil)
	s := &service{config: config.Config{GPU: config.GPU{Engine: image.KeeperEngine}}}
	if err := s.giveLibrary(t.Context(), c, &taskAPI.CreateTaskRequest{Bundle: c.bundle.dir}); err != nil || c.gpus.fallback == "" || hasLibrary(t, c) {
		t.Errorf("without a library, and not asked for one: %v, %+v", err, c.gpus)
	}
}

// TestGiveManaged: a container's annotation says who makes its managed memory.
func TestGiveManaged(t *testing.T) {
	hostLibrary(t)
	for name, test := range map[string]struct {
		engine, managed string
		given           string
		wrong           bool
	}{
		"not asked":             {engine: image.KeeperEngine},
		"the driver":            {engine: image.KeeperEngine, managed: gpu.ManagedByDriver, given: library.ManagedByDriver},
		"on the host":           {engine: image.KeeperEngine, managed: gpu.ManagedOnHost, given: library.ManagedOnHost},
		"asked, with no engine": {engine: image.DriverEngine, managed: gpu.ManagedOnHost},
		"another word":          {engine: image.KeeperEngine, managed: "yes", wrong: true},
		"another, no engine":    {engine: image.DriverEngine, managed: "yes", wrong: true},
	} {
		annotations := map[string]string{gpu.EngineAnnotation: test.engine}
		if test.managed != "" {
			annotations[gpu.ManagedAnnotation] = test.managed
		}
		c := engineBundle(t, annotations)
		err := (&service{}).giveLibrary(t.Context(), c, &taskAPI.CreateTaskRequest{ID: "c", Bundle: c.bundle.dir})
		if test.wrong != errors.Is(err, errdefs.ErrInvalidArgument) || !test.wrong && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		spec, err := c.bundle.spec()
		if err != nil {
			t.Fatal(err)
		}
		given := ""
		for _, v := range spec.Process.Env {
			if v == library.ManagedByDriver || v == library.ManagedOnHost {
				given += v
			}
		}
		if given != test.given {
			t.Errorf("%s: it is given %q", name, given)
		}
	}
}

func TestGiveLibraryAgain(t *testing.T) {
	here := hostLibrary(t)
	for name, test := range map[string]struct {
		record *gpu.Record
		given  bool
		wrong  bool
	}{
		"no record":       {nil, false, false},
		"by the driver":   {&gpu.Record{GPU: image.GPU{Engine: image.DriverEngine}}, false, false},
		"without library": {&gpu.Record{GPU: image.GPU{Engine: image.KeeperEngine}}, false, false},
		"the same":        {&gpu.Record{GPU: image.GPU{Engine: image.KeeperEngine, Library: &image.GPULibrary{Version: "1", Digest: here}}}, true, false},
		"another":         {&gpu.Record{GPU: image.GPU{Engine: image.KeeperEngine, Library: &image.GPULibrary{Version: "1", Digest: digest.FromString("other")}}}, false, true},
	} {
		c := engineBundle(t, nil, "lib/ld-musl-x86_64.so.1")
		c.gpus.record = test.record
		err := c.bundle.changeSpec(c.giveLibraryAgain)
		if errors.As(err, new(*failure.Error)) != test.wrong || !test.wrong && err != nil || hasLibrary(t, c) != test.given || (c.gpus.library != nil) != test.given {
			t.Errorf("%s: %v, got %+v", name, err, c.gpus)
		}
	}
}

// TestHandOverOnlyToThoseWhoTakeIt: without a process that takes device memory, or of a paused container, nothing is handed over.
func TestHandOverOnlyToThoseWhoTakeIt(t *testing.T) {
	takes := &worker.Holder{Hold: worker.Hold{Options: checkpoint.Options{Devices: true}}}
	for name, test := range map[string]struct {
		library      *image.GPULibrary
		holder       *worker.Holder
		frozen, want bool
	}{
		"taken":             {&image.GPULibrary{}, takes, false, true},
		"paused":            {&image.GPULibrary{}, takes, true, false},
		"a stock client":    {&image.GPULibrary{}, nil, false, false},
		"not wanted":        {&image.GPULibrary{}, &worker.Holder{}, false, false},
		"without a library": {nil, takes, false, false},
	} {
		e := &gpu.Engine{}
		handOver(&container{gpus: gpus{library: test.library}}, e, test.holder, test.frozen)
		if (e.Peer != nil) != test.want || test.library != nil && (e.Fallback == "") != test.want || e.Library != test.library {
			t.Errorf("%s: got %+v", name, e)
		}
	}
}
