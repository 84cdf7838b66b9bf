package library

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/gputest"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	var pids []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return childrenOf(t, pid) // a thread has ended, and another has its children
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, n)
		}
	}
	return pids
}

// TestPlain loads the library into programs that have nothing to do with GPUs.
func TestPlain(t *testing.T) {
	gputest.Need(t)
	c := exec.Command("cat")
	c.Env = []string{"LD_PRELOAD=" + libraryPath, "LD_BIND_NOW=1"}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := find("/proc", c.Process.Pid); ok || err != nil {
		t.Errorf("a thread in cat, %v", err)
	}
	if _, err := fmt.Fprintln(in, "line"); err != nil {
		t.Fatal(err)
	}
	if n := threads(t, c.Process.Pid); n != 1 {
		t.Errorf("%d threads in cat", n)
	}
	_ = in.Close()
	if err := c.Wait(); err != nil || out.String() != "line\n" {
		t.Errorf("%v, %q", err, &out)
	}
}

// TestPortable holds the library to what the glibc of any image still in use has.
func TestPortable(t *testing.T) {
	gputest.Need(t)
	f, err := elf.Open(libraryPath)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) != 1 || libraries[0] != "libc.so.6" {
		t.Errorf("libraries %v, %v", libraries, err)
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		var major, minor int
		if _, err := fmt.Sscanf(s.Version, "GLIBC_%d.%d", &major, &minor); err == nil && (major != 2 || minor > 17) {
			t.Errorf("%s is of %s", s.Name, s.Version)
		}
	}
	for _, p := range f.Progs {
		if p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0 {
			t.Errorf("a part of it is writable and executable")
		}
	}
}

func TestFind(t *testing.T) {
	proc := t.TempDir()
	for tid, name := range map[string]string{"7/task/7": "python", "7/task/9": "cryo-gpu", "8/task/8": "cryo-gpus", "9/task/9": "x", "9/task/10": "cryo-gpu 12"} {
		dir := filepath.Join(proc, tid)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "comm"), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for pid, want := range map[int]int{7: 9, 8: 0, 9: 10, 10: 0} {
		tid, ok, err := find(proc, pid)
		if tid != want || ok != (want != 0) || err != nil {
			t.Errorf("process %d: %d, %v, %v", pid, tid, ok, err)
		}
	}
}

func TestLocate(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	t.Setenv(Variable, path)
	if _, err := Locate(""); err == nil || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if l, err := Locate(""); err != nil || l.Path != path || l.Digest != "sha256:982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1" {
		t.Errorf("%+v, %v", l, err)
	}
	t.Setenv(Variable, filepath.Dir(path))
	if _, err := Locate(""); err == nil {
		t.Error("a directory is no library")
	}
}

func TestInject(t *testing.T) {
	dev := specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}
	for _, test := range []struct {
		name   string
		mounts []specs.Mount
		files  []string
		env    []string
		want   string // of the environment; empty: nothing is done
	}{
		{"plain", []specs.Mount{dev}, nil, []string{"A=b"}, "A=b LD_PRELOAD=/dev/cryo/libcryo-gpu.so"},
		{"joined", []specs.Mount{dev}, nil, []string{"LD_PRELOAD=/lib/x.so", "A=b"}, "LD_PRELOAD=/dev/cryo/libcryo-gpu.so:/lib/x.so A=b"},
		{"empty", []specs.Mount{dev}, nil, []string{"LD_PRELOAD="}, "LD_PRELOAD=/dev/cryo/libcryo-gpu.so"},
		{"the host's /dev", []specs.Mount{{Destination: "/dev/", Type: "bind", Source: "/dev"}}, nil, nil, ""},
		{"the image's /dev", nil, nil, nil, ""},
		{"musl", []specs.Mount{dev}, []string{"lib/ld-musl-x86_64.so.1", "lib64/ld-linux-x86-64.so.2"}, nil, ""},
		{"both", []specs.Mount{dev}, []string{"lib/ld-musl-x86_64.so.1", "lib/x86_64-linux-gnu/libc.so.6"}, nil, "LD_PRELOAD=/dev/cryo/libcryo-gpu.so"},
	} {
		t.Run(test.name, func(t *testing.T) {
			rootfs := t.TempDir()
			for _, name := range test.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(rootfs, name)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(rootfs, name), nil, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			spec := &specs.Spec{Mounts: test.mounts, Process: &specs.Process{Env: test.env}}
			why := Lib{Path: "/usr/lib/cryo/libcryo-gpu.so"}.Inject(spec, rootfs)
			if done := len(spec.Mounts) > len(test.mounts); (why == "") != (test.want != "") || done != (why == "") {
				t.Fatalf("%q, mounts %v", why, spec.Mounts)
			}
			if got := strings.Join(spec.Process.Env, " "); why == "" && got != test.want {
				t.Errorf("environment %q, want %q", got, test.want)
			}
			if done := len(spec.Mounts) > len(test.mounts); done && !slices.Contains(spec.Mounts[len(spec.Mounts)-1].Options, "rprivate") {
				t.Errorf("a mount that may be a slave of the host's: %v", spec.Mounts[len(spec.Mounts)-1])
			}
		})
	}
}
