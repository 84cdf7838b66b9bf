package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// fake makes a host tree out of paths and contents.
func fake(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const intel = `processor	: 0
model name	: Intel(R) Xeon(R) Processor
flags		: fpu sse2 avx sse
bugs		: spectre_v1

processor	: 1
model name	: Intel(R) Xeon(R) Processor
flags		: fpu sse2 avx sse
`

const arm = `processor	: 0
BogoMIPS	: 50.00
Features	: fp asimd sve
CPU implementer	: 0x41
CPU part	: 0xd40

processor	: 1
Features	: fp asimd
CPU implementer	: 0x41
CPU part	: 0xd41
`

func TestCPU(t *testing.T) {
	for name, c := range map[string]struct {
		cpuinfo, model string
		flags          []string
		fails          bool
	}{
		"intel":                     {intel, "Intel(R) Xeon(R) Processor", []string{"avx", "fpu", "sse", "sse2"}, false},
		"arm with unequal cores":    {arm, "implementer 0x41 part 0xd40", []string{"asimd", "fp"}, false},
		"without features":          {"processor : 0\n", "", nil, true},
		"with a flag twice":         {"flags : a b a\n", "", []string{"a", "b"}, false},
		"one core without anything": {"flags : a\nflags :\n", "", []string{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			model, flags, err := cpu(fake(t, map[string]string{"proc/cpuinfo": c.cpuinfo}))
			if (err != nil) != c.fails || model != c.model || !slices.Equal(flags, c.flags) {
				t.Errorf("cpu() = %q, %v, %v", model, flags, err)
			}
		})
	}
	if _, _, err := cpu(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without /proc: %v", err)
	}
}

func TestCgroupVersionAndLSM(t *testing.T) {
	for name, c := range map[string]struct {
		files   map[string]string
		version int
		lsm     string
	}{
		"bare":                {map[string]string{}, 1, ""},
		"version 2, apparmor": {map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu", "sys/module/apparmor/parameters/enabled": "Y\n"}, 2, "apparmor"},
		"hybrid, selinux":     {map[string]string{"sys/fs/cgroup/unified/cgroup.controllers": "", "sys/fs/selinux/enforce": "1"}, 1, "selinux"},
		"apparmor is off":     {map[string]string{"sys/module/apparmor/parameters/enabled": "N\n"}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := fake(t, c.files)
			if v := CgroupVersion(root); v != c.version {
				t.Errorf("CgroupVersion() = %d, want %d", v, c.version)
			}
			if l := lsm(root); l != c.lsm {
				t.Errorf("lsm() = %q, want %q", l, c.lsm)
			}
		})
	}
}

func TestCollect(t *testing.T) {
	root := fake(t, map[string]string{
		"proc/sys/kernel/osrelease": "6.12.1\n", "proc/cpuinfo": intel,
		"bin/criu": "#!/bin/sh\ncase \"$*\" in --version) echo Version: 4.1.1;; 'check --feature timens') ;; *) exit 1;; esac\n",
		"bin/runc": "#!/bin/sh\necho '{\"linux\": {\"seccomp\": {\"enabled\": true}}, \"annotations\": {\"org.opencontainers.runc.version\": \"1.5.2\"}}'\n",
	})
	o := Options{Root: root, CRIU: filepath.Join(root, "bin/criu"), Runc: filepath.Join(root, "bin/runc"),
		Features: []string{"timens", "uffd", "--exec-cmd", "timens"}}
	f, r, err := Collect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if f.Kernel != "6.12.1" || f.CRIU != "4.1.1" || f.Runc != "1.5.2" || f.CgroupVersion != 1 || f.Architecture != runtime.GOARCH {
		t.Errorf("Collect() = %+v", f)
	}
	if !slices.Equal(f.Features, []string{"timens"}) {
		t.Errorf("features %v", f.Features)
	}
	if r.Version != "1.5.2" || !r.Seccomp || r.Path != o.Runc {
		t.Errorf("Collect() gives runc %+v", r)
	}

	o.CRIU, o.Runc = filepath.Join(root, "none"), filepath.Join(root, "none")
	if f, _, err := Collect(t.Context(), o); err != nil || f.CRIU != "" || f.Runc != "" || f.Features != nil {
		t.Errorf("without programs: %+v, %v", f, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Collect(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestXSaveSize(t *testing.T) {
	_, flags, err := cpu("/")
	if err != nil {
		t.Skip(err)
	}
	size := xsaveSize()
	if has := slices.Contains(flags, "xsave"); has != (size > 0) {
		t.Errorf("xsave in flags: %v, size %d", has, size)
	}
	// 512 bytes of FXSAVE and the header of 64 are always there.
	if size != 0 && size < 576 {
		t.Errorf("size %d is too small", size)
	}
}
