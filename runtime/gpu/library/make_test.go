package library

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// fill gives memory the contents of other memory.
func (a *app) fill(made, from []*os.File) {
	a.t.Helper()
	if len(made) != len(from) {
		a.t.Fatalf("%d pieces for %d", len(made), len(from))
	}
	for i, f := range from {
		st, err := f.Stat()
		a.Must(err)
		b := make([]byte, st.Size())
		_, err = f.ReadAt(b, 0)
		a.Must(err)
		_, err = made[i].WriteAt(b, 0)
		a.Must(err)
	}
}

// made has the program make all its memory.
func (a *app) made(p *Process, pieces []record.GPUPiece) (files []*os.File, err error) {
	a.t.Cleanup(func() { closeFiles(files) })
	for n := range pieces {
		f, err := p.Make(a.t.Context(), pieces, n)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// remade has the program make its memory, and fills it.
func (a *app) remade(pieces []record.GPUPiece, from []*os.File) {
	a.t.Helper()
	p, h := a.dial()
	if h.State != Given {
		a.t.Fatalf("state %s", h.State)
	}
	made, err := a.made(p, pieces)
	a.Must(err)
	a.Waits()
	a.fill(made, from)
	closeFiles(made)
	a.Must(p.Filled())
	if h, err := p.Hello(); err != nil || h.State != Closed || h.Foreign != 0 {
		a.t.Fatalf("%+v, %v", h, err)
	}
	a.Must(p.Open())
	a.Must(p.HangUp())
}

// TestMake has a program make the memory that it is to have, more than once.
func TestMake(t *testing.T) {
	r := newRig(t, 256, 256)
	a := r.run("--blocks", "1,5,9", "--bind", "dlsym")
	for range 2 {
		pieces, files := a.take()
		a.remade(pieces, files)
		closeFiles(files)
		a.works()
	}
	pieces, files := a.take()
	a.back(pieces, files)
	a.works()
}

// TestMakeUnfilled: until the host has filled it there is no such memory, and nobody passes the gate.
func TestMakeUnfilled(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--blocks", "5,9")
	pieces, files := a.take()
	for range 3 {
		p, _ := a.dial()
		made, err := a.made(p, pieces)
		a.Must(err)
		closeFiles(made)
		for what, do := range map[string]func() error{"open": p.Open, "release": p.Release} {
			if err := do(); !errors.As(err, new(*device.CallError)) {
				t.Errorf("%s: %v", what, err)
			}
		}
		a.Must(p.HangUp())
		a.Waits()
	}
	a.remade(pieces, files)
	closeFiles(files)
	a.works()
}

// TestMakeRefused: what is not made as a whole is not made, and can be later; nor is anything made where it is not wanted.
func TestMakeRefused(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--blocks", "5,9")
	p, _ := a.dial()
	a.Must(p.Close(t.Context(), patient))
	pieces, files := a.given(p)
	var call *device.CallError
	if _, err := a.made(p, pieces); !errors.As(err, &call) {
		t.Errorf("there is some: %v", err)
	}
	if err := p.Filled(); !errors.As(err, &call) {
		t.Errorf("nothing was made: %v", err)
	}
	a.Must(p.Release())
	for _, fail := range []string{"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle"} {
		r.Order(append(slices.Repeat([]string{fail + " * pass"}, 2), fail+" * error 999")...)
		if _, err := a.made(p, pieces); !errors.As(err, &call) || call.Code != 999 {
			t.Errorf("%s: %v", fail, err)
		}
		r.Order()
		if err := p.Filled(); !errors.As(err, &call) {
			t.Errorf("%s: it was filled: %v", fail, err)
		}
	}
	if _, err := p.Make(t.Context(), pieces, 1); !errors.As(err, &call) {
		t.Errorf("without the first: %v", err)
	}
	first, err := p.Make(t.Context(), pieces, 0)
	a.Must(err)
	closeFiles([]*os.File{first})
	if err := p.Filled(); !errors.As(err, &call) {
		t.Errorf("only one is made: %v", err)
	}
	if _, err := p.Make(t.Context(), pieces, 2); !errors.As(err, &call) {
		t.Errorf("without the second: %v", err)
	}
	if _, err := a.made(p, pieces[1:]); !errdefs.IsDataLoss(err) {
		t.Errorf("too few: %v", err)
	}
	other := slices.Clone(pieces)
	other[1].Size *= 2
	if _, err := a.made(p, other); !errdefs.IsDataLoss(err) {
		t.Errorf("others: %v", err)
	}
	a.Must(p.HangUp())
	a.Waits()
	a.remade(pieces, files)
	a.works()
}
