package gpu

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// saved is a record of what [newWorld] has for these processes.
func saved(pids ...int) Record {
	r := Record{GPU: record.GPU{Engine: "driver", Driver: "580.95.05", Devices: []record.GPUDevice{{UUID: uuidA, Name: "H200", Architecture: "9.0", Memory: 140 << 30, Used: int64(len(pids)) << 30}}}}
	for _, pid := range pids {
		r.Processes = append(r.Processes, record.GPUProcess{PID: pid - 100, Command: "app", Memory: 1 << 30, Devices: []string{uuidA}})
	}
	return r
}

func TestMisfits(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(*world, *Restore)
		rule string
	}{
		{"fits", func(*world, *Restore) {}, ""},
		{"another branch", func(_ *world, r *Restore) { r.Record.Driver = "575.57.08" }, "gpu-driver"},
		{"another architecture", func(w *world, _ *Restore) { w.facts.Devices[0].Architecture = "10.0" }, "gpu-architecture"},
		{"no GPU", func(_ *world, r *Restore) { r.Minors = []int{7} }, "gpu-count"},
		{"too little memory", func(w *world, _ *Restore) { w.facts.Devices[0].Free = 1 << 20 }, "gpu-memory"},
		{"too little for what was handed over", func(w *world, r *Restore) {
			r.Record.Devices[0].Used, r.Record.Processes[0].Memory, w.facts.Devices[0].Free = 0, 0, 1<<20
			r.Record.Processes[0].Pieces = []record.GPUPiece{{Address: 1 << 28, Size: 2 << 20, Device: uuidA}}
		}, "gpu-memory"},
		{"too little in all", func(_ *world, r *Restore) { r.Record.Devices[0].Used, r.Record.Processes[0].Memory = 0, 1<<60 }, "gpu-memory"},
		{"mapped to one it does not get", func(_ *world, r *Restore) { r.Map = Map{{uuidA, uuidB}} }, "gpu-missing"},
		{"map of an earlier restore", func(_ *world, r *Restore) { r.Map = Map{{uuidB, uuidA}} }, ""},
	} {
		w := newWorld(t, 101)
		r := &Restore{Container: Container{Minors: []int{0}}, Record: saved(101)}
		test.set(w, r)
		err := r.plan(w.facts, nil)
		var misfit *MisfitError
		switch {
		case test.rule == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.rule != "" && (!errors.As(err, &misfit) || misfit.Rule != test.rule || misfit.Hint() == ""):
			t.Errorf("%s: got %v", test.name, err)
		}
	}
}

func TestPlaces(t *testing.T) {
	a, b := device.Device{UUID: uuidA}, device.Device{UUID: uuidB}
	both := Record{GPU: record.GPU{Devices: []record.GPUDevice{{UUID: uuidA}, {UUID: uuidB}}}}
	for _, test := range []struct {
		name    string
		visible []device.Device
		wanted  string
		pairs   []device.DevicePair
	}{
		{"in order", []device.Device{a, b}, "", nil},
		{"swapped", []device.Device{b, a}, "", []device.DevicePair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"swapped by name", []device.Device{a, b}, uuidA + "=" + uuidB, []device.DevicePair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"swapped by number", []device.Device{a, b}, "0=1,1=0", []device.DevicePair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"swapped by one number", []device.Device{a, b}, "1=0", []device.DevicePair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"both", []device.Device{a, b}, "0=" + uuidB, []device.DevicePair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"of an earlier restore", []device.Device{a, b}, strings.ReplaceAll(uuidA, "a", "c") + "=" + uuidB, nil},
	} {
		wanted, err := ParseMap(test.wanted)
		if err != nil {
			t.Fatal(err)
		}
		places, err := both.places(test.visible, wanted)
		if err != nil {
			t.Fatal(err)
		}
		if got := both.pairs(places); !slices.Equal(got, test.pairs) {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
	for text, says := range map[string]string{
		uuidA + "=" + uuidB + "," + uuidB + "=" + uuidB: "or not twice",
		"0=1,1=1": "or not twice", "0=0,0=1": "two GPUs", "2=0": "the snapshot has no GPU 2, but 2", "0=2": "the container has no GPU 2, but 2",
	} {
		wanted, err := ParseMap(text)
		if err != nil {
			t.Fatal(err)
		}
		var misfit *MisfitError
		if _, err := both.places([]device.Device{a, b}, wanted); !errors.As(err, &misfit) || misfit.Rule != "gpu-missing" || !strings.Contains(misfit.Problem, says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestParseMap(t *testing.T) {
	if m, err := ParseMap(""); m != nil || err != nil {
		t.Errorf("got %v, %v", m, err)
	}
	if m, err := ParseMap(uuidA + "=" + uuidB + "," + uuidB + "=" + uuidA); len(m) != 2 || m[0] != (Moved{uuidA, uuidB}) || err != nil {
		t.Errorf("got %v, %v", m, err)
	}
	for _, text := range []string{"x", uuidA, "0", "0=", "0=-1", "0=01", "0=1=2", "," + uuidA + "=" + uuidB} {
		if m, err := ParseMap(text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: got %v", text, m)
		}
	}
}
