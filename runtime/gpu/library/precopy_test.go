package library

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// TestPlaces lists what a program has while it runs: what it hands over when it stands still.
func TestPlaces(t *testing.T) {
	a := newRig(t, 128).run("--blocks", "1,2,3,9,4,6", "--kinds", "plain,plain,plain,plain,whole,released")
	p, _ := a.dial()
	open, err := p.Places()
	a.Must(err)
	a.works()
	a.Must(p.Close(t.Context(), patient))
	closed, err := p.Table()
	a.Must(err)
	if len(open) != 8 || !slices.Equal(open, closed) {
		t.Errorf("%v while it runs, %v when it stands still", open, closed)
	}
	var call *device.CallError
	if _, err := p.Places(); !errors.As(err, &call) {
		t.Errorf("listed when it stands still: %v", err)
	}
	if _, err := p.Lend(closed[0]); !errors.As(err, &call) {
		t.Errorf("lent when it stands still: %v", err)
	}
	a.Must(p.Open())
	a.works()
}

// TestLend lends one piece after the other. A program that frees what is lent waits until it is returned, or the host has hung up, or for two seconds.
func TestLend(t *testing.T) {
	for name, end := range map[string]func(p *Process) error{
		"returned":    (*Process).Return,
		"hung up":     (*Process).HangUp,
		"stops":       func(p *Process) error { return errors.Join(p.Close(t.Context(), patient), p.Open()) },
		"keeps quiet": nil,
	} {
		for _, kind := range []string{"plain", "whole"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				r := newRig(t, 64)
				a := r.run("--blocks", "6", "--kinds", kind)
				p, _ := a.dial()
				pieces, err := p.Places()
				a.Must(err)
				for _, piece := range pieces {
					file, err := p.Lend(piece)
					a.Must(err)
					if st, err := file.Stat(); err != nil || st.Size() != piece.Size {
						t.Errorf("%v, %v", st, err)
					}
					file.Close()
				}
				file, err := p.Lend(pieces[0])
				a.Must(err)
				defer file.Close()
				begin, freed := time.Now(), make(chan error, 1)
				go func() {
					_, err := a.Ask("drop", time.Minute)
					freed <- err
				}()
				select {
				case err := <-freed:
					t.Fatalf("it was freed, %v", err)
				case <-time.After(300 * time.Millisecond):
				}
				if end != nil {
					a.Must(end(p))
				}
				a.Must(<-freed)
				if took := time.Since(begin); end == nil && took < 2*time.Second || end != nil && took > 1900*time.Millisecond {
					t.Errorf("it was freed after %s", took)
				}
				a.works()
			})
		}
	}
}

// TestLendGone asks for what there is not.
func TestLendGone(t *testing.T) {
	a := newRig(t, 64).run("--blocks", "6")
	p, _ := a.dial()
	pieces, err := p.Places()
	a.Must(err)
	wrong := slices.Clone(pieces[:2])
	wrong[0].Address += granularity
	wrong[1].Size += granularity
	for _, piece := range wrong {
		var call *device.CallError
		if file, err := p.Lend(piece); !errors.As(err, &call) || call.Code != NotFound {
			t.Errorf("%v, %v", file, err)
		}
	}
	file, err := p.Lend(pieces[0])
	a.Must(err)
	defer file.Close()
	if !sameMemory(t, file, pieces[0].Size) {
		t.Error("it is other memory")
	}
	a.works()
}

// sameMemory reports whether a file has memory of a size, which can be mapped.
func sameMemory(t *testing.T, f *os.File, size int64) bool {
	t.Helper()
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Error(err)
		return false
	}
	defer func() { _ = unix.Munmap(b) }()
	return slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}
