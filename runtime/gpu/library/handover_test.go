package library

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/integration/gputest"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// TestHandOver hands everything over and takes it back, with calls bound in each of the ways that programs do.
func TestHandOver(t *testing.T) {
	t.Parallel()
	for _, bind := range []string{"direct", "dlsym", "proc"} {
		t.Run(bind, func(t *testing.T) {
			r := newRig(t, 64, 64)
			a := r.run("--blocks", "1,2,3,9", "--bind", bind)
			a.works()
			p, h := a.dial()
			// 2 MiB are one piece, 3 one of 4, 9 two of 4 and one of 2; what is smaller stays with the driver.
			if want := (Hello{State: Whole, Pieces: 10, Version: h.Version}); h != want || h.Version == "" {
				t.Fatalf("%+v, want %+v", h, want)
			}
			a.Must(p.Close(t.Context(), patient))
			a.Waits()
			pieces, files := a.given(p)
			check(t, r, pieces, 10)
			a.Must(p.Release())
			a.Must(p.HangUp())
			a.Waits()
			// It listens, and two that wait are being answered.
			gputest.Eventually(t, "its library has no socket", func() bool { return links(t, a.PID, "socket:") == 1+2 })
			again, h := a.dial()
			if h.State != Given {
				t.Fatalf("state %s", h.State)
			}
			if same, err := again.Table(); err != nil || len(same) != len(pieces) || same[9] != pieces[9] {
				t.Fatalf("%v, %v, want %v", same, err, pieces)
			}
			a.Must(again.HangUp())
			a.back(pieces, files)
			a.works()
		})
	}
}

// check looks at pieces of two devices.
func check(t *testing.T, r *rig, pieces []record.GPUPiece, want int) {
	t.Helper()
	on := map[string]int64{}
	for i, p := range pieces {
		if p.Size > 4*mib {
			t.Errorf("piece %d is %+v", i, p)
		}
		on[p.Device] += p.Size
	}
	if len(pieces) != want || on[r.Devices[0]] != 16*mib || on[r.Devices[1]] != 16*mib {
		t.Fatalf("%d pieces, bytes %v", len(pieces), on)
	}
}

// TestPieces: a large allocation is made of larger pieces, so that it is not of many.
func TestPieces(t *testing.T) {
	a := newRig(t, 512).run("--blocks", "3,62,64,66")
	pieces, files := a.take()
	var sizes []uint64
	for _, p := range pieces {
		sizes = append(sizes, uint64(p.Size/mib))
	}
	slices.Sort(sizes)
	want := slices.Concat([]uint64{2, 2}, slices.Repeat([]uint64{4}, 1+15), slices.Repeat([]uint64{16}, 4+4))
	if !slices.Equal(sizes, want) {
		t.Errorf("pieces of %v MiB, want %v", sizes, want)
	}
	a.back(pieces, files)
	a.works()
}

// TestOtherMemory attaches memory that the process has never had, as a restore does, and hands that over again.
func TestOtherMemory(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--blocks", "5,9")
	for range 3 {
		pieces, files := a.take()
		moved := r.elsewhere(0, files)
		closeFiles(files)
		a.back(pieces, moved)
		a.works()
	}
	a.Does("drop")
	a.works()
}

// TestNoRoom attaches where there is no room to make all memory the process's own at once.
func TestNoRoom(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--blocks", "5,9")
	pieces, files := a.take()
	r.Order("cuMemCreate * pass", "cuMemCreate * error 2")
	p, _ := a.dial()
	a.Must(p.Attach(t.Context(), pieces, files))
	if h, err := p.Hello(); err != nil || h.State != Closed || h.Foreign != len(pieces)-1 {
		t.Fatalf("%+v, %v", h, err)
	}
	a.Must(p.HangUp()) // all is attached: it goes on
	closeFiles(files)
	a.works()
	// What is foreign can be handed over by the descriptors that are left of it.
	pieces, files = a.take()
	if n := links(t, a.PID, "/mem-"); n != 1 { // its counter's
		t.Errorf("%d descriptors of memory are open", n)
	}
	a.back(pieces, files)
	a.works()
}

// ownsAll makes all memory of the process its own. The old memory is freed when the last process has closed it: one that this program is about to start has its files for a moment.
func (a *app) ownsAll(p *Process) {
	a.t.Helper()
	left, err := p.Own(a.t.Context())
	for deadline := time.Now().Add(patient); left > 0 && err == nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		left, err = p.Own(a.t.Context())
	}
	if left != 0 || err != nil {
		a.t.Fatal(left, err)
	}
}

// TestLittleRoom has a device with room for one more piece, and not for all of them twice.
func TestLittleRoom(t *testing.T) {
	r := newRig(t, 16)
	a := r.run("--blocks", "9")
	for range 3 {
		pieces, files := a.take()
		p, _ := a.dial()
		a.Must(p.Attach(t.Context(), pieces, files))
		if h, err := p.Hello(); err != nil || h.Foreign != 2 {
			t.Fatalf("%+v, %v", h, err)
		}
		closeFiles(files)
		a.ownsAll(p)
		a.Must(p.Open())
		a.Must(p.HangUp())
		a.works()
	}
}

// TestOwnAsRoomAllows has room for a small piece and not for a large one that comes before.
func TestOwnAsRoomAllows(t *testing.T) {
	r := newRig(t, 18)
	a := r.run("--blocks", "9")
	pieces, files := a.take()
	p, _ := a.dial()
	a.Must(p.Attach(t.Context(), pieces, files))
	if left, err := p.Own(t.Context()); left != 1 || err != nil {
		t.Fatal(left, err)
	}
	closeFiles(files)
	a.ownsAll(p)
	a.Must(p.HangUp())
	a.works()
}

// TestHangUp goes away after each step. What was not handed over goes on; the rest is given back the next time.
func TestHangUp(t *testing.T) {
	a := newRig(t, 256).run("--blocks", "5,9")
	p, _ := a.dial()
	a.Must(p.HangUp())
	a.whole()
	p, _ = a.dial()
	a.Must(p.Close(t.Context(), patient))
	a.Must(p.HangUp())
	a.whole()
	p, _ = a.dial()
	a.Must(p.Close(t.Context(), patient))
	_, files := a.given(p)
	a.Must(p.HangUp())
	closeFiles(files)
	a.whole()
	pieces, files := a.take()
	p, _ = a.dial()
	if _, _, _, err := p.request(t.Context(), "attach", header{Kind: attach, Count: uint32(len(pieces))}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if h, _, _, err := p.request(t.Context(), "attach", header{Kind: attach, Count: 1}, make([]byte, 4), files[:1]); err != nil || h.Result != 0 {
		t.Fatal(h, err)
	}
	a.Must(p.HangUp())
	a.Waits()
	a.back(pieces, files)
	a.works()
}

// TestKilled ends the program at each step.
func TestKilled(t *testing.T) {
	r := newRig(t, 256)
	steps := []struct {
		name string
		do   func(a *app, p *Process) error
	}{
		{"hello", func(a *app, p *Process) error { _, err := p.Hello(); return err }},
		{"close", func(a *app, p *Process) error { return p.Close(t.Context(), patient) }},
		{"table", func(a *app, p *Process) error { _, err := p.Table(); return err }},
		{"give", func(a *app, p *Process) error { files, err := p.Give(); closeFiles(files); return err }},
		{"release", func(a *app, p *Process) error { return p.Release() }},
		{"open", func(a *app, p *Process) error { return p.Open() }},
	}
	for i, step := range steps {
		a := r.run("--blocks", "5")
		p, _ := a.dial()
		for _, before := range steps[:i] {
			a.Must(before.do(a, p))
		}
		a.Kill()
		var gone *GoneError
		if err := step.do(a, p); !errors.As(err, &gone) {
			t.Errorf("%s: %v", step.name, err)
		}
		if _, err := Dial(t.Context(), a.PID); !errors.As(err, &gone) {
			t.Errorf("dial after %s: %v", step.name, err)
		}
	}
}

// TestDies has the program die in the driver's calls.
func TestDies(t *testing.T) {
	r := newRig(t, 256)
	for _, call := range []string{"cuMemExportToShareableHandle", "cuMemUnmap", "cuMemRelease", "cuMemImportFromShareableHandle", "cuMemSetAccess"} {
		r.Order()
		a := r.run("--blocks", "5,9")
		r.Order(call+" * pass", call+" * exit")
		var gone *GoneError
		err := everything(a)
		if !errors.As(err, &gone) {
			t.Errorf("%s: %v", call, err)
		}
		a.Kill()
	}
}

// everything hands over and takes back, until an error.
func everything(a *app) error {
	p, err := Dial(a.t.Context(), a.PID)
	if err != nil {
		return err
	}
	defer func() { _ = p.HangUp() }()
	if err := p.Close(a.t.Context(), patient); err != nil {
		return err
	}
	pieces, err := p.Table()
	if err != nil {
		return err
	}
	files, err := p.Give()
	if err != nil {
		return err
	}
	defer closeFiles(files)
	if err := p.Release(); err != nil {
		return err
	}
	if err := p.Attach(a.t.Context(), pieces, files); err != nil {
		return err
	}
	return p.Open()
}

// TestRefused has the driver refuse calls. Nothing is lost: what was not handed over goes on, and what was is given back the next time.
func TestRefused(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--blocks", "5,9")
	const failing, all = " * error 999", 5 // pieces
	pass := func(call string, times int) []string { return slices.Repeat([]string{call + " * pass"}, times) }
	// An attached piece takes two mappings, of own memory and of the attached beside it, and one where that fails.
	for _, test := range []struct {
		name   string
		orders []string
		state  State // afterwards
	}{
		{"export", append(pass("cuMemExportToShareableHandle", 2), "cuMemExportToShareableHandle"+failing), Whole},
		{"unmap", append(pass("cuMemUnmap", 2), "cuMemUnmap"+failing), Whole},
		{"wait", []string{"cuCtxSynchronize" + failing}, Whole},
		{"import", append(pass("cuMemImportFromShareableHandle", 2), "cuMemImportFromShareableHandle"+failing), Given},
		// All is attached, and not all of it the process's own.
		{"reserve", []string{"cuMemAddressReserve" + failing}, Closed},
		{"copy", append(pass("cuMemcpyDtoD", 2), "cuMemcpyDtoD"+failing), Closed},
		{"wait for copies", append(pass("cuCtxSynchronize", 1), "cuCtxSynchronize"+failing), Closed},
		{"map its own", append(pass("cuMemMap", 2), "cuMemMap"+failing), Closed},
		{"map beside", append(pass("cuMemMap", 3), "cuMemMap"+failing), Closed},
		{"access beside", append(pass("cuMemSetAccess", 3), "cuMemSetAccess"+failing), Closed},
		// Nothing is.
		{"map", append(pass("cuMemMap", 2), "cuMemMap"+failing, "cuMemMap"+failing), Given},
		{"access", append(pass("cuMemSetAccess", 2), "cuMemSetAccess"+failing, "cuMemSetAccess"+failing), Given},
		{"unmap beside", append(pass("cuMemUnmap", all), "cuMemUnmap"+failing), Given},
		{"map after a failed copy", slices.Concat(pass("cuCtxSynchronize", 1), []string{"cuCtxSynchronize" + failing}, pass("cuMemMap", 2*all+1), []string{"cuMemMap" + failing}), Given},
	} {
		r.Order(test.orders...)
		p, _ := a.dial()
		err := p.Close(t.Context(), patient)
		var pieces []record.GPUPiece
		var files []*os.File
		if err == nil {
			pieces, err = p.Table()
		}
		if err == nil {
			files, err = p.Give()
		}
		if err == nil {
			err = p.Release()
		}
		if err == nil {
			err = p.Attach(t.Context(), pieces, files)
		}
		var call *device.CallError
		if test.state == Closed && err != nil || test.state != Closed && !errors.As(err, &call) {
			t.Fatalf("%s: %v", test.name, err)
		}
		a.Must(p.HangUp())
		r.Order()
		if test.state == Given {
			a.Waits()
			a.back(pieces, files)
		} else {
			a.whole()
		}
		closeFiles(files)
		if test.state == Closed {
			p, h := a.dial()
			a.Must(p.Close(t.Context(), patient))
			left, err := p.Own(t.Context())
			a.Must(err)
			a.Must(p.HangUp())
			if h.Foreign == 0 || left != 0 {
				t.Errorf("%s: %d pieces are not its own, later %d", test.name, h.Foreign, left)
			}
		}
		a.works()
	}
}

// TestBusy meets a kernel that takes longer than the deadline.
func TestBusy(t *testing.T) {
	a := newRig(t, 64).run("--blocks", "5")
	a.Does("launch 1000")
	p, _ := a.dial()
	var busy *BusyError
	if err := p.Close(t.Context(), 50*time.Millisecond); !errors.As(err, &busy) {
		t.Fatal(err)
	}
	a.Must(p.HangUp())
	a.works()
	pieces, files := a.take()
	a.back(pieces, files)
	a.works()
}

// TestUnable has the program ask for a handle for other processes.
func TestUnable(t *testing.T) {
	a := newRig(t, 64).run("--blocks", "1,5")
	a.Does("ipc")
	p, h := a.dial()
	if h.Unable == "" {
		t.Fatalf("%+v", h)
	}
	var unable *UnableError
	if err := p.Close(t.Context(), patient); !errors.As(err, &unable) || unable.Reason != h.Unable {
		t.Fatal(err)
	}
	a.Must(p.HangUp())
	a.works()
	a.Does("drop") // new memory is the driver's
	if _, h := a.dial(); h.Pieces != 0 {
		t.Fatalf("%+v", h)
	}
}

// TestFork forks children without exec. They have nothing of the library's, and the parent can be handed over as before.
func TestFork(t *testing.T) {
	a := newRig(t, 256).run("--blocks", "5,9")
	p, _ := a.dial()
	a.Does("fork 1") // while the library has a socket
	a.Must(p.HangUp())
	a.Does("fork 1")
	var children []int
	gputest.Eventually(t, "two children", func() bool { // while the thread that has forked ends, its children are listed nowhere
		children = childrenOf(t, a.PID)
		return len(children) == 2
	})
	for _, pid := range children {
		if tid, ok, err := find("/proc", pid); ok || err != nil {
			t.Errorf("child %d: thread %d, %v", pid, tid, err)
		}
	}
	pieces, files := a.take()
	a.Does("count")
	a.back(pieces, files)
	a.works()
}

// TestStorm hands over 24 times under threads that use the driver all the time.
func TestStorm(t *testing.T) {
	r := newRig(t, 512)
	a := r.run("--blocks", "5,9", "--storm", "4")
	first := a.Does("check").State.Processes[0].Rounds
	var descriptors, maps, tasks int
	for i := range 10 {
		pieces, files := a.take()
		if i == 5 {
			descriptors, maps, tasks = links(t, a.PID, ""), lines(t, "/proc/%d/maps", a.PID), threads(t, a.PID)
		}
		if i > 5 {
			// Behind the gate the program has what the driver made for it: as much as its threads were at.
			if n := links(t, a.PID, ""); n > descriptors+8 {
				t.Errorf("round %d: %d descriptors, %d before", i, n, descriptors)
			}
			if n := lines(t, "/proc/%d/maps", a.PID); n > maps+32 {
				t.Errorf("round %d: %d mappings, %d before", i, n, maps)
			}
			if n := threads(t, a.PID); n > tasks+4 {
				t.Errorf("round %d: %d threads, %d before", i, n, tasks)
			}
		}
		a.back(pieces, files)
	}
	if last := a.Does("check").State.Processes[0].Rounds; last <= first {
		t.Errorf("its threads stand still at round %d", last)
	}
	a.works()
}
