package library

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// allKinds are blocks with handles, of each kind that is handed over, beside plain ones.
var allKinds = []string{"--blocks", "1,5,4,8,4,6,4,4", "--kinds", "plain,plain,whole,chunks,released,retained,held,twice"}

// piecesOf is how many pieces each device has of them: 4 MiB and 2 of one allocation, 4, 2+2+2+2, 4, 4+2, 4, 4.
const piecesOf = 2 + 1 + 4 + 1 + 2 + 1 + 1

// TestVirtual hands memory over that the program has made with handles and mapped by itself. It sees what it sees without the library, with calls bound in each of the ways that programs do.
func TestVirtual(t *testing.T) {
	t.Parallel()
	for bind, devices := range map[string]int{"direct": 2, "dlsym": 1, "proc": 1} {
		t.Run(bind, func(t *testing.T) {
			r := newRig(t, slices.Repeat([]int{256}, devices)...)
			a := r.run(append(allKinds, "--bind", bind)...)
			a.works()
			p, h := a.dial()
			if want := (Hello{State: Whole, Pieces: devices * piecesOf, Version: h.Version}); h != want {
				t.Fatalf("%+v, want %+v", h, want)
			}
			a.Must(p.HangUp())
			for range 2 {
				pieces, files := a.take()
				if len(pieces) != devices*piecesOf {
					t.Errorf("%d pieces", len(pieces))
				}
				a.Waits()
				a.back(pieces, files)
				a.works()
			}
			a.Does("change 7")
			a.works()
			a.Does("drop")
			a.works()
		})
	}
}

// TestVirtualWithout: without the library the program sees the same.
func TestVirtualWithout(t *testing.T) {
	r := newRig(t, 256, 256)
	r.Env = []string{"LD_PRELOAD="}
	a := r.run(allKinds...)
	a.works()
	a.Does("drop")
	a.works()
}

// TestVirtualMoved attaches memory that the process has never had, and has it make its own, as restores do.
func TestVirtualMoved(t *testing.T) {
	r := newRig(t, 512)
	a := r.run(allKinds...)
	for range 2 {
		pieces, files := a.take()
		moved := r.elsewhere(0, files)
		closeFiles(files)
		a.back(pieces, moved)
		a.works()
		pieces, files = a.take()
		a.remade(pieces, files)
		closeFiles(files)
		a.works()
	}
	a.Does("change 3")
	a.works()
}

// TestVirtualSaved: the driver's checkpoint finds nothing of it.
func TestVirtualSaved(t *testing.T) {
	r := newRig(t, 256, 256)
	r.Env = append(r.Env, localMemory...)
	k := newHelper(t, r)
	a := r.run("--blocks", "4,8,4,4,4", "--kinds", "whole,chunks,released,held,twice")
	for range 2 {
		pieces, files := a.take()
		a.save(k)
		a.load(k)
		a.back(pieces, files)
		a.saved(2 * lowered)
		a.works()
	}
}

// TestVirtualLarge: memory in one piece for descriptors is so where the process sees several GPUs, and the driver's where it is too large for that.
func TestVirtualLarge(t *testing.T) {
	t.Parallel()
	for devices, want := range map[int][]int64{
		// 20 MiB without descriptors are five pieces, and 18 with them one of 16 and one of 2.
		1: {2, 4, 4, 4, 4, 4, 16, 16},
		2: {4, 4, 4, 4, 4, 16},
	} {
		t.Run(fmt.Sprintf("%d devices", devices), func(t *testing.T) {
			a := newRig(t, slices.Repeat([]int{256}, devices)...).run("--blocks", "16,18,20", "--kinds", "whole,whole,twice", "--apart")
			a.works()
			pieces, files := a.take()
			var got []int64
			for _, p := range pieces {
				got = append(got, p.Size/mib)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("pieces of %v MiB, want %v", got, want)
			}
			a.back(pieces, files)
			a.works()
		})
	}
}

// TestVirtualExported: what others may have goes as all else does.
func TestVirtualExported(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--blocks", "4,4", "--kinds", "exported,whole")
	a.works()
	for range 2 {
		pieces, files := a.take()
		if len(pieces) != 2 {
			t.Errorf("%d pieces", len(pieces))
		}
		a.back(pieces, files)
		a.works()
	}
}

// TestVirtualNoRoom attaches where there is no room to make memory the process's own, and hands that over again.
func TestVirtualNoRoom(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--blocks", "4,8,4,4", "--kinds", "whole,chunks,held,twice")
	for range 2 {
		pieces, files := a.take()
		r.Order("cuMemCreate * pass", "cuMemCreate * error 2")
		p, _ := a.dial()
		a.Must(p.Attach(t.Context(), pieces, files))
		if h, err := p.Hello(); err != nil || h.State != Closed || h.Foreign != len(pieces)-1 {
			t.Fatalf("%+v, %v", h, err)
		}
		a.Must(p.HangUp())
		closeFiles(files)
		a.works()
	}
	p, _ := a.dial()
	a.Must(p.Close(t.Context(), patient))
	if left, err := p.Own(t.Context()); left != 0 || err != nil {
		t.Fatal(left, err)
	}
	a.Must(p.HangUp())
	a.works()
	a.Does("drop")
	a.works()
}

// attempt hands everything over and takes it back, until an error. What the files have is the caller's.
func (a *app) attempt() (pieces []record.GPUPiece, files []*os.File, err error) {
	p, err := Dial(a.t.Context(), a.PID)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = p.HangUp() }()
	if err = p.Close(a.t.Context(), patient); err != nil {
		return nil, nil, err
	}
	if pieces, err = p.Table(); err != nil {
		return nil, nil, err
	}
	if files, err = p.Give(); err != nil {
		return nil, nil, err
	}
	if err = p.Release(); err == nil {
		err = p.Attach(a.t.Context(), pieces, files)
	}
	return pieces, files, err
}

// TestVirtualRefused has the driver refuse each call that takes memory with handles away and brings it back, one call later each time. Nothing is lost.
func TestVirtualRefused(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemCreate", "cuMemImportFromShareableHandle", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemcpyDtoD"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, 256)
			a := r.run("--blocks", "4,4,4,2", "--kinds", "chunks,twice,held,plain")
			for passes := 0; ; passes++ {
				r.Order(append(slices.Repeat([]string{call + " * pass"}, passes), call+" * error 999")...)
				pieces, files, err := a.attempt()
				orders, read := os.ReadFile(filepath.Join(r.Dir, "orders"))
				a.Must(read)
				r.Order()
				if err != nil && !errors.As(err, new(*device.CallError)) {
					t.Fatalf("after %d: %v", passes, err)
				}
				p, h := a.dial()
				a.Must(p.HangUp())
				if h.State == Given {
					a.back(pieces, files)
				}
				closeFiles(files)
				a.works()
				if strings.HasSuffix(string(orders), "\n"+call+" * error 999\n") { // it was not called as often
					if passes < 2 {
						t.Errorf("it was called %d times", passes)
					}
					break
				}
			}
		})
	}
}

// TestVirtualFork: a child has nothing of it, and the parent can be handed over as before.
func TestVirtualFork(t *testing.T) {
	r := newRig(t, 256)
	a := r.run(allKinds...)
	a.Does("fork 2")
	pieces, files := a.take()
	a.back(pieces, files)
	a.works()
}

// TestVirtualStorm hands over under threads that use the driver all the time.
func TestVirtualStorm(t *testing.T) {
	r := newRig(t, 512)
	a := r.run(append(allKinds, "--storm", "4")...)
	for range 5 {
		pieces, files := a.take()
		a.back(pieces, files)
	}
	a.works()
}

// TestVirtualNotMade has the driver refuse each call by which a process makes memory with handles anew, one call later each time. It can be made the next time.
func TestVirtualNotMade(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"cuMemMap", "cuMemSetAccess", "cuMemCreate", "cuMemExportToShareableHandle"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, 256)
			a := r.run("--blocks", "4,4,4,2", "--kinds", "chunks,twice,held,plain")
			pieces, files := a.take()
			for passes, made := 0, false; !made; passes++ {
				r.Order(append(slices.Repeat([]string{call + " * pass"}, passes), call+" * error 999")...)
				p, _ := a.dial()
				out, err := a.made(p, pieces)
				if err == nil {
					a.fill(out, files)
					err = p.Filled()
				}
				closeFiles(out)
				r.Order()
				if made = err == nil; !made && !errors.As(err, new(*device.CallError)) {
					t.Fatalf("after %d: %v", passes, err)
				}
				a.Must(p.HangUp())
				if !made {
					a.Waits()
				}
			}
			a.works()
		})
	}
}

// TestVirtualExportedForeign: what is not the process's own can be exported all the same, and goes as all else does.
func TestVirtualExportedForeign(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--blocks", "4,4", "--kinds", "whole,retained")
	pieces, files := a.take()
	r.Order("cuMemCreate * error 2")
	p, _ := a.dial()
	a.Must(p.Attach(t.Context(), pieces, files))
	a.Must(p.HangUp())
	r.Order()
	closeFiles(files)
	a.Does("export 0")
	a.works()
	p, h := a.dial()
	if h.Unable != "" || h.Foreign != len(pieces) {
		t.Errorf("%+v", h)
	}
	a.Must(p.HangUp())
	pieces, files = a.take()
	a.back(pieces, files)
	a.works()
}
