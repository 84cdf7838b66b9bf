package gpu

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// saved is a record of what [newWorld] has for these processes, which are as CRIU leaves them.
func saved(w *world, pids ...int) Record {
	r := Record{GPU: spec.GPU{Engine: "driver", Driver: "580.95.05", Devices: []spec.GPUDevice{{UUID: uuidA, Name: "H200", Architecture: "9.0", Memory: 140 << 30, Used: int64(len(pids)) << 30}}}}
	for _, pid := range pids {
		w.states[pid] = driver.Checkpointed
		r.Processes = append(r.Processes, spec.GPUProcess{PID: pid - 100, Command: "app", Memory: 1 << 30, Devices: []string{uuidA}})
	}
	return r
}

// fits begins a restore, and waits for what that comes to.
func fits(t *testing.T, r *Restore) error {
	if err := r.Begin(t.Context()); err != nil {
		return err
	}
	return r.Fits()
}

func TestRestore(t *testing.T) {
	hasten(t)
	for _, test := range []struct {
		name  string
		minor int
		pairs []driver.Pair
	}{
		{"same GPU", 0, nil},
		{"another", 1, []driver.Pair{{Old: uuidA, New: uuidB}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, 101, 102)
			r := &Restore{Container: w.container(), Record: saved(w, 101, 102)}
			r.Minors = []int{test.minor}
			if err := fits(t, r); err != nil {
				t.Fatal(err)
			}
			took, err := r.Load(t.Context())
			if err != nil || took <= 0 {
				t.Fatal(took, err)
			}
			r.Close()
			if !slices.Equal(w.pairs, test.pairs) {
				t.Errorf("pairs %v", w.pairs)
			}
			w.settled()
		})
	}
}

// TestRestoreFails: the reason is the driver's, and no helper is left. A helper that dies is replaced.
func TestRestoreFails(t *testing.T) {
	hasten(t)
	for _, test := range []struct {
		fail, how string
		always    bool
		want      string // in the error; empty: none
	}{
		{fail: "restore 102", how: "801", want: "process 102 (app): restore: CUDA_ERROR (801)"},
		{fail: "restore 102", how: "2", always: true, want: "(2)"},
		{fail: "restore 102", how: "2"},
		{fail: "restore 101", how: "die"},
		{fail: "restore 101", how: "die after"},
		{fail: "unlock 102", how: "die after"},
		{fail: "restore 101", how: "hang"},
		{fail: "restore 101", how: "die", always: true, want: "died"},
		{fail: "unlock 102", how: "999", want: "unlock"},
	} {
		t.Run(test.fail+", "+test.how, func(t *testing.T) {
			w := newWorld(t, 101, 102)
			w.fail, w.how, w.always = test.fail, test.how, test.always
			r := &Restore{Container: w.container(), Record: saved(w, 101, 102)}
			if err := fits(t, r); err != nil {
				t.Fatal(err)
			}
			_, err := r.Load(t.Context())
			r.Close()
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				w.settled()
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			w.quiet()
		})
	}
}

func TestRestoreOfNobody(t *testing.T) {
	w := newWorld(t)
	r := &Restore{Container: w.container(), Record: Record{GPU: spec.GPU{Engine: "driver"}}}
	if err := fits(t, r); err != nil || w.started != 0 {
		t.Errorf("%v, %d helpers", err, w.started)
	}
	if took, err := r.Load(t.Context()); took != 0 || err != nil || w.started != 0 {
		t.Errorf("%s, %v, %d helpers", took, err, w.started)
	}
	r.Record = saved(w, 101)
	if _, err := r.Load(t.Context()); !errdefs.IsDataLoss(err) {
		t.Errorf("got %v", err)
	}
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
			r.Record.Processes[0].Pieces = []spec.GPUPiece{{Address: 1 << 28, Size: 2 << 20, Device: uuidA}}
			r.Handover, r.Bring = w.handover(), func() (Source, error) { return &snapshotSource{}, nil }
		}, "gpu-memory"},
		{"too little in all", func(_ *world, r *Restore) { r.Record.Devices[0].Used, r.Record.Processes[0].Memory = 0, 1<<60 }, "gpu-memory"},
		{"mapped to one it does not get", func(_ *world, r *Restore) { r.Map = Map{{uuidA, uuidB}} }, "gpu-missing"},
		{"map of an earlier restore", func(_ *world, r *Restore) { r.Map = Map{{uuidB, uuidA}} }, ""},
	} {
		w := newWorld(t, 101)
		r := &Restore{Container: w.container(), Record: saved(w, 101)}
		test.set(w, r)
		err := fits(t, r)
		r.Close()
		var misfit *MisfitError
		switch {
		case test.rule == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.rule != "" && (!errors.As(err, &misfit) || misfit.Rule != test.rule || misfit.Hint() == ""):
			t.Errorf("%s: got %v", test.name, err)
		}
		if got := w.steps("restore", "unlock"); got != "" {
			t.Errorf("%s: did %s", test.name, got)
		}
		w.quiet()
	}
}

func TestPlaces(t *testing.T) {
	a, b := driver.Device{UUID: uuidA}, driver.Device{UUID: uuidB}
	both := Record{GPU: spec.GPU{Devices: []spec.GPUDevice{{UUID: uuidA}, {UUID: uuidB}}}}
	for _, test := range []struct {
		name    string
		visible []driver.Device
		wanted  string
		pairs   []driver.Pair
	}{
		{"in order", []driver.Device{a, b}, "", nil},
		{"swapped", []driver.Device{b, a}, "", []driver.Pair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"swapped by name", []driver.Device{a, b}, uuidA + "=" + uuidB, []driver.Pair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"swapped by number", []driver.Device{a, b}, "0=1,1=0", []driver.Pair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"swapped by one number", []driver.Device{a, b}, "1=0", []driver.Pair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"both", []driver.Device{a, b}, "0=" + uuidB, []driver.Pair{{Old: uuidA, New: uuidB}, {Old: uuidB, New: uuidA}}},
		{"of an earlier restore", []driver.Device{a, b}, strings.ReplaceAll(uuidA, "a", "c") + "=" + uuidB, nil},
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
		if _, err := both.places([]driver.Device{a, b}, wanted); !errors.As(err, &misfit) || misfit.Rule != "gpu-missing" || !strings.Contains(misfit.Problem, says) {
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
