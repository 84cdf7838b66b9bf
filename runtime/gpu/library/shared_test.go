package library

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/record"
)

// member is a process of a program whose processes share memory.
type member struct {
	*Process
	pid    int
	pieces []record.GPUPiece
	files  []*os.File
	passed []Passed
}

// closed closes the gates of all processes of a program, and takes what they hand over.
func (a *app) closed() (all []*member) {
	a.t.Helper()
	for _, pid := range a.PIDs {
		p, err := Dial(a.t.Context(), pid)
		a.Must(err)
		a.t.Cleanup(func() { _ = p.HangUp() })
		_, err = p.Hello()
		a.Must(err)
		m := &member{Process: p, pid: pid}
		a.Must(p.Close(a.t.Context(), patient))
		m.pieces, m.files = a.given(p)
		m.passed, err = p.Shared()
		a.Must(err)
		a.t.Cleanup(func() { m.forget() })
		all = append(all, m)
	}
	return all
}

func (m *member) forget() {
	for _, p := range m.passed {
		p.File.Close()
	}
	closeFiles(m.files)
}

// owner finds what a descriptor was exported from.
func owner(t *testing.T, all []*member, of Passed) (*member, Passed) {
	t.Helper()
	self := os.Getpid()
	for _, m := range all {
		for _, p := range m.passed {
			r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(self), uintptr(self), 0, p.File.Fd(), of.File.Fd(), 0)
			if errno != 0 {
				t.Fatal(errno)
			}
			if !p.Import && r == 0 {
				return m, p
			}
		}
	}
	t.Fatalf("nobody has exported %+v", of)
	return nil, Passed{}
}

// shareable is what a descriptor was exported from.
func (p Passed) shareable() Shareable {
	return Shareable{Number: p.Memory, Host: p.Host, Multicast: p.Team > 0}
}

// TestShared hands over memory that processes share, and brings it back: each sees what the others write.
func TestShared(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			r := newRig(t, 256)
			a := r.run("--processes", fmt.Sprint(processes), "--share", "4", "--blocks", "2,3")
			a.works()
			for round := range 2 {
				all := a.closed()
				for _, m := range all {
					if exports, imports := count(m.passed); exports != min(processes-1, 1) || imports != processes-1 || len(m.pieces) != 3 {
						t.Fatalf("%d exports, %d imports, %d pieces", exports, imports, len(m.pieces))
					}
					if err := m.Release(); (err == nil) != (processes == 1) {
						t.Errorf("release what is shared: %v", err)
					}
				}
				for _, m := range all {
					if processes > 1 {
						a.Must(m.Part())
					}
				}
				for _, m := range all {
					if processes > 1 {
						a.Must(m.Release())
					}
					a.Must(m.HangUp())
				}
				a.Waits()
				a.shares(all)
				a.works()
				a.Does(fmt.Sprintf("change %d", round+2))
				a.works()
			}
		})
	}
}

func count(passed []Passed) (exports, imports int) {
	for _, p := range passed {
		if p.Import {
			imports++
		} else {
			exports++
		}
	}
	return exports, imports
}

// shares attaches all memory, and then brings imports back. No gate opens before.
func (a *app) shares(all []*member) {
	a.t.Helper()
	for _, m := range all {
		var h Hello
		var err error
		m.Process, err = Dial(a.t.Context(), m.pid)
		a.Must(err)
		h, err = m.Hello()
		if err != nil || h.State != Given {
			a.t.Fatalf("%+v, %v", h, err)
		}
		a.Must(m.Attach(a.t.Context(), m.pieces, m.files))
		closeFiles(m.files)
		_, err = m.Own(a.t.Context())
		a.Must(err)
	}
	a.together(all)
}

// together brings imports back, and opens all gates.
func (a *app) together(all []*member) {
	a.t.Helper()
	for _, m := range all {
		_, imports := count(m.passed)
		books, err := m.Books()
		a.Must(err)
		if books.Apart > 0 {
			if err := m.Open(); err == nil {
				a.t.Errorf("the gate opens without %d of %d imports", books.Apart, imports)
			}
		}
		for _, p := range m.passed {
			if p.Import {
				from, memory := owner(a.t, all, p)
				f, err := from.Export(memory.shareable())
				a.Must(err)
				a.Must(m.Import(p.Memory, memory.Team > 0, f))
				a.Must(m.Import(p.Memory, memory.Team > 0, f)) // a second time, as a host does whose first conversation broke off
				f.Close()
			}
		}
	}
	for _, m := range all {
		a.Must(m.Join())
	}
	for _, m := range all {
		a.Must(m.Bind())
	}
	for _, m := range all {
		a.Must(m.Open())
		a.Must(m.HangUp())
	}
}

// TestSharedHungUp: a host that hangs up while imports are not there leaves the gate closed, and another conversation brings them.
func TestSharedHungUp(t *testing.T) {
	a := newRig(t, 256).run("--processes", "2", "--share", "4")
	all := a.closed()
	for _, m := range all {
		a.Must(m.Part())
		a.Must(m.Release())
		a.Must(m.HangUp())
		p, err := Dial(t.Context(), m.pid)
		a.Must(err)
		_, err = p.Hello()
		a.Must(err)
		a.Must(p.Attach(t.Context(), m.pieces, m.files))
		a.Must(p.HangUp())
	}
	a.Waits()
	for _, m := range all {
		p, err := Dial(t.Context(), m.pid)
		a.Must(err)
		h, err := p.Hello()
		b, berr := p.Books()
		if err != nil || berr != nil || h.State != Closed || b.Imports != 1 || b.Apart != 1 {
			t.Fatalf("%+v, %+v, %v, %v", h, b, err, berr)
		}
		m.Process = p
	}
	for i, m := range all {
		at := slices.IndexFunc(m.passed, func(p Passed) bool { return p.Import })
		from, memory := owner(t, all, m.passed[at])
		if from == all[i] {
			t.Error("it has exported to itself")
		}
		f, err := from.Export(memory.shareable())
		a.Must(err)
		a.Must(m.Import(m.passed[at].Memory, memory.Team > 0, f))
		f.Close()
	}
	for _, m := range all {
		a.Must(m.Open())
		a.Must(m.HangUp())
	}
	a.works()
}

// TestSharedFails has each call of the driver that brings an import back, or takes it away, fail once.
func TestSharedFails(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t, 256)
			a := r.run("--processes", "2", "--share", "4", "--blocks", "2")
			all := a.closed()
			for _, m := range all {
				a.Must(m.Part())
				a.Must(m.Release())
				a.Must(m.HangUp())
			}
			for _, m := range all {
				var err error
				m.Process, err = Dial(t.Context(), m.pid)
				a.Must(err)
				_, err = m.Hello()
				a.Must(err)
				a.Must(m.Attach(t.Context(), m.pieces, m.files))
			}
			r.Order(call + " 2 error 2")
			if call == "cuMemExportToShareableHandle" {
				r.Order(call + " 1 error 2")
			}
			bring := func() error {
				for _, m := range all {
					for _, p := range m.passed {
						if !p.Import {
							continue
						}
						from, memory := owner(t, all, p)
						f, err := from.Export(memory.shareable())
						if err != nil {
							return err
						}
						err = m.Import(p.Memory, memory.Team > 0, f)
						f.Close()
						if err != nil {
							return err
						}
					}
				}
				return nil
			}
			if err := bring(); err == nil {
				t.Error("it came back by a call that failed")
			}
			a.Waits()
			a.Must(bring())
			for _, m := range all {
				a.Must(m.Open())
				a.Must(m.HangUp())
			}
			a.works()
		})
	}
}

// TestSharedNotParted: where imports cannot be taken away, all of them come back.
func TestSharedNotParted(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--processes", "4", "--share", "4", "--blocks", "2")
	for n := range 3 {
		all := a.closed()
		var orders []string
		for range n {
			orders = append(orders, "cuMemUnmap 1 pass")
		}
		r.Order(append(orders, "cuMemUnmap 1 error 1")...)
		if err := all[0].Part(); err == nil {
			t.Error("it was taken apart by a call that failed")
		}
		r.Order()
		a.together(all)
		a.works()
		a.Does(fmt.Sprintf("change %d", n+2))
		a.works()
	}
}

// TestSharedNotReleased: a process that shares, and could not let go of its own memory, waits until all have theirs.
func TestSharedNotReleased(t *testing.T) {
	r := newRig(t, 256)
	a := r.run("--processes", "2", "--share", "4", "--blocks", "2")
	all := a.closed()
	for _, m := range all {
		a.Must(m.Part())
	}
	r.Order("cuMemUnmap 1 error 1")
	if err := all[0].Release(); err == nil {
		t.Error("it was released by a call that failed")
	}
	a.Must(all[1].Release())
	for _, m := range all {
		a.Must(m.HangUp())
	}
	for i, m := range all {
		p, err := Dial(t.Context(), m.pid)
		a.Must(err)
		m.Process = p
		h, err := p.Hello()
		if want := []State{Closed, Given}[i]; err != nil || h.State != want {
			t.Errorf("%+v, %v, want %s", h, err, want)
		}
	}
	a.Waits()
	a.Must(all[1].Attach(t.Context(), all[1].pieces, all[1].files))
	a.together(all)
	a.works()
}
