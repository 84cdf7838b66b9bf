package shim

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

func TestOpenBundle(t *testing.T) {
	tests := []struct {
		name, spec    string
		own, cgroups  string
		annotations   int
		keepsUnknowns bool
	}{
		{name: "bare", spec: `{}`, own: criu.RuncConfig, annotations: 2},
		{name: "with others", spec: `{"annotations":{"a":"b"},"linux":{"cgroupsPath":"/x/y"}}`, own: criu.RuncConfig, cgroups: "/x/y", annotations: 3},
		{name: "named by its creator", spec: `{"annotations":{"org.criu.config":"/my.conf"}}`, own: "/my.conf", annotations: 2},
		{name: "switched off by its creator", spec: `{"annotations":{"org.criu.config":""}}`, own: "", annotations: 2},
		{name: "of a later version", spec: `{"later":{"x":12345678901234567890}}`, own: criu.RuncConfig, annotations: 2, keepsUnknowns: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, specFile)
			if err := os.WriteFile(path, []byte(test.spec), 0o600); err != nil {
				t.Fatal(err)
			}
			// Twice: what the first writes must not be taken for the creator's by the second.
			b, err := openBundle(dir, noImage)
			if err != nil {
				t.Fatal(err)
			}
			if b.ownCRIUConfig != test.own || b.cgroupsPath != test.cgroups {
				t.Errorf("got %+v", b)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var spec struct {
				Annotations map[string]string `json:"annotations"`
				Later       json.RawMessage   `json:"later"`
			}
			if err := json.Unmarshal(data, &spec); err != nil {
				t.Fatal(err)
			}
			if len(spec.Annotations) != test.annotations || spec.Annotations[criu.Annotation] != b.criuConfig() || b.mark == "" || spec.Annotations[runc.MarkAnnotation] != b.mark {
				t.Errorf("annotations %v", spec.Annotations)
			}
			if test.keepsUnknowns && string(spec.Later) != `{"x":12345678901234567890}` {
				t.Errorf("unknown field became %s", spec.Later)
			}
			again, err := openBundle(dir, noImage)
			if err != nil || again.ownCRIUConfig != "" || again.mark == b.mark {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
}

// TestBundleGPUs: what is decoded when a bundle is opened is enough to see GPUs, wherever they are in the specification.
func TestBundleGPUs(t *testing.T) {
	for spec, nvidia := range map[string]bool{
		`{}`:                           false,
		`{"linux":null,"mounts":null}`: false,
		`{"linux":{"devices":[{"path":"/dev/fuse","type":"c","major":10,"minor":229}]},"mounts":[{"destination":"/dev","source":"tmpfs"}]}`: false,
		`{"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}]}}`:                                                  true,
		`{"Linux":{"Devices":[{"path":"/dev/nvidia0"}]}}`:                                                                                   true, // as runc reads it
		`{"mounts":[{"destination":"/dev/nvidiactl","source":"/dev/nvidiactl"}]}`:                                                           true,
		`{"mounts":[{"destination":"/dev","source":"/dev"}]}`:                                                                               true,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, specFile), []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
		if b, err := openBundle(dir, noImage); err != nil || b.gpus.nvidia != nvidia {
			t.Errorf("%s: got %+v, %v", spec, b.gpus, err)
		}
	}
}

func TestOwnedDirectories(t *testing.T) {
	runtimeDir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", runtimeDir)
	daemons := filepath.Join(runtimeDir, daemonPattern+"123")
	users := filepath.Join(runtimeDir, "mine")
	elsewhere := filepath.Join(t.TempDir(), daemonPattern+"123")
	for _, dir := range []string{daemons, users, elsewhere} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		b := bundle{dir: t.TempDir()}
		if err := b.own(dir); err != nil {
			t.Fatal(err)
		}
		if err := removeOwned(b.dir); err != nil {
			t.Fatal(err)
		}
		if err := removeOwned(b.dir); err != nil {
			t.Errorf("twice: %v", err)
		}
		_, err := os.Stat(dir)
		if removed := os.IsNotExist(err); removed != (dir == daemons) {
			t.Errorf("%s: removed %v", dir, removed)
		}
	}
}

// noImage is for a configuration that allows none.
func noImage(string) bool { return false }

// TestWorkLock: while something is under way with a work directory of CRIU's, nothing else may be, nor is anything ended there for a dead shim.
func TestWorkLock(t *testing.T) {
	a, b, work := bundle{dir: t.TempDir()}, bundle{dir: t.TempDir()}, filepath.Join(t.TempDir(), "work")
	done, err := a.begin(restoreFile, work)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.begin(dumpFile, work); !errors.Is(err, failure.ErrBusy) {
		t.Errorf("it is begun twice: %v", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, restoreFile), []byte(work), 0o600); err != nil {
		t.Fatal(err)
	}
	if at, err := endBegun(b.dir, restoreFile); at != "" || !errors.Is(err, failure.ErrBusy) {
		t.Errorf("another's is ended: %q, %v", at, err)
	}
	done(false)
	if at, err := endBegun(a.dir, restoreFile); at != work || err != nil {
		t.Errorf("that of a dead shim is not ended: %q, %v", at, err)
	}
	if done, err = a.begin(restoreFile, work); err != nil {
		t.Fatal(err)
	}
	done(true)
	if at, err := endBegun(a.dir, restoreFile); at != "" || err != nil {
		t.Errorf("what is done is ended: %q, %v", at, err)
	}
}

// TestUnmountYard unmounts what CRIU has mounted in its work directory, and nothing else there.
func TestUnmountYard(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	work := t.TempDir()
	for _, name := range []string{".criu.cgyard.abc", "other"} {
		at := filepath.Join(work, name)
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", at, "tmpfs", 0, ""); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		if err := os.WriteFile(filepath.Join(at, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unmountYard(work); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(work, ".criu.cgyard.abc/file")); err == nil {
		t.Error("CRIU's is left")
	}
	if _, err := os.Stat(filepath.Join(work, "other/file")); err != nil {
		t.Errorf("another was unmounted: %v", err)
	}
	if err := unmountYard(filepath.Join(work, "none")); err != nil {
		t.Error(err)
	}
}
