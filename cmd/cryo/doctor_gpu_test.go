package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/integration/hosttest"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

func TestDoctorOnGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		helper string // what it says; empty: there is none
		code   int    // how it ends
		driver bool   // the kernel's module is loaded
		want   map[string]string
	}{
		"nothing":            {"", 0, false, map[string]string{"gpu": good}},
		"no helper":          {"", 0, true, map[string]string{"gpu": worry}},
		"no driver":          {`{"driver":{"fault":"absent","message":"none"}}`, 1, false, map[string]string{"gpu": good}},
		"no libraries":       {`{"driver":{"fault":"absent","message":"none"}}`, 1, true, map[string]string{"gpu": worry}},
		"old driver":         {`{"driver":{"fault":"old","message":"550"}}`, 1, true, map[string]string{"gpu": worry}},
		"two GPUs":           {`{"driver":"580.159.04","cuda":13000,"devices":[{"index":0},{"index":1}]}`, 0, true, map[string]string{"gpu": good, "gpu 0": good, "gpu 1": good, "gpu engine": good, "gpu cdi": good}},
		"divided, and MPS":   {`{"driver":"580.159.04","mps":true,"devices":[{"mig":true}]}`, 0, true, map[string]string{"gpu": good, "gpu 0": worry, "gpu mps": worry, "gpu engine": good, "gpu cdi": good}},
		"nonsense":           {`{"what":1}`, 0, true, map[string]string{"gpu": worry}},
		"a driver elsewhere": {`{"driver":"580.159.04","devices":[]}`, 0, false, map[string]string{"gpu": good, "gpu engine": good, "gpu cdi": good}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", "/usr/bin:/bin")
			a := hosttest.CDI(t, "two")
			if c.helper != "" {
				a = hosttest.HelperSays(t, c.code, c.helper)
			}
			root := t.TempDir()
			file := filepath.Join(root, library.File)
			t.Setenv(library.Variable, file)
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if c.driver {
				if err := os.MkdirAll(filepath.Join(root, "proc/driver/nvidia/version"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			got := map[string]string{}
			for _, x := range checkGPU(t.Context(), &patient{doctorOptions: doctorOptions{Config: a}, root: root}) {
				got[x.Name] = x.Status
				if x.Detail == "" || x.Status == worry && x.Mend == "" {
					t.Errorf("%+v", x)
				}
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestDoctorOnEngine: without the library the driver saves all, unless the configuration has that anyway.
func TestDoctorOnEngine(t *testing.T) {
	t.Setenv(library.Variable, "/nowhere/"+library.File)
	a := hosttest.Host(t, "580.159.04", 1)
	if x := checkEngine(&patient{doctorOptions: doctorOptions{Config: a}}); len(x) != 1 || x[0].Status != worry || !strings.Contains(x[0].Mend, "make install") {
		t.Errorf("got %+v", x)
	}
	a.GPU.Engine = image.DriverEngine
	if x := checkEngine(&patient{doctorOptions: doctorOptions{Config: a}}); x != nil {
		t.Errorf("got %+v", x)
	}
}

func TestDoctorOnCDI(t *testing.T) {
	a := hosttest.Host(t, "580.159.04", 1)
	p := &patient{doctorOptions: doctorOptions{Config: a}, root: t.TempDir()}
	p.Config.GPU.CDI = []string{t.TempDir()}
	if x := checkCDI(p); x[0].Status != worry || !strings.Contains(x[0].Mend, "nvidia-ctk cdi generate") {
		t.Errorf("without files: %+v", x)
	}
}
