package library

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// team starts processes that have a multicast object, each on a device of its own; one process is on two.
func (r *rig) team(processes int, more ...string) *app {
	r.t.Helper()
	flags := []string{"--multicast", "4", "--blocks", "2"}
	if processes > 1 {
		flags = append(flags, "--processes", fmt.Sprint(processes), "--apart")
	}
	return r.run(append(flags, more...)...)
}

// sizes are those of so many devices, in MiB.
func sizes(devices int) []int { return slices.Repeat([]int{64}, devices) }

// changes has processes write to all memory and look at it.
func (a *app) changes(key int) {
	a.t.Helper()
	a.works()
	a.Does(fmt.Sprintf("change %d", key))
	a.works()
}

// apart takes all apart, and lets the driver have the processes.
func (a *app) apart(all []*member) {
	a.t.Helper()
	for _, m := range all {
		a.Must(m.Unbind())
	}
	for _, m := range all {
		a.Must(m.Part())
	}
	for _, m := range all {
		a.Must(m.Release())
		a.Must(m.HangUp())
	}
}

// attached connects to the library of each process, which attaches its memory.
func (a *app) attached(all []*member) {
	a.t.Helper()
	for _, m := range all {
		var err error
		m.Process, err = Dial(a.t.Context(), m.pid)
		a.Must(err)
		a.t.Cleanup(func() { _ = m.HangUp() })
		h, err := m.Hello()
		a.Must(err)
		if h.State == Given {
			a.Must(m.Attach(a.t.Context(), m.pieces, m.files))
		}
		_, err = m.Own(a.t.Context())
		a.Must(err)
	}
}

// imports exports each thing once, and has all import it that had.
func (a *app) imports(all []*member) error {
	a.t.Helper()
	type export struct {
		from *member
		what Shareable
	}
	files := map[export]*os.File{}
	for _, m := range all {
		for _, p := range m.passed {
			if !p.Import {
				continue
			}
			from, passed := owner(a.t, all, p)
			e := export{from, passed.shareable()}
			if files[e] == nil {
				f, err := from.Export(e.what)
				if err != nil {
					return err
				}
				defer f.Close()
				files[e] = f
			}
			if err := m.Import(p.Memory, e.what.Multicast, files[e]); err != nil {
				return err
			}
		}
	}
	return nil
}

// joined has all join, then all bind.
func (a *app) joined(all []*member) error {
	for _, step := range []func(*Process) error{(*Process).Join, (*Process).Bind} {
		for _, m := range all {
			if err := step(m.Process); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *app) opened(all []*member) {
	a.t.Helper()
	for _, m := range all {
		a.Must(m.Open())
		a.Must(m.HangUp())
	}
}

// TestMulticast takes multicast objects apart, has the driver save and restore all processes, and puts them together: what one writes for all reaches the memory of all devices, and sums are right. The
// checkpoint of a process that has an object does not end in the fake driver either.
func TestMulticast(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2, 4, 8} {
		for _, bind := range []string{"direct", "proc"} {
			if processes > 2 && bind == "proc" {
				continue
			}
			t.Run(fmt.Sprintf("%d %s", processes, bind), func(t *testing.T) {
				r := newRig(t, sizes(max(processes, 2))...)
				r.Env = append(r.Env, localMemory...)
				k := newHelper(t, r)
				a := r.team(processes, "--bind", bind)
				a.changes(2)
				for round := range 2 {
					all := a.closed()
					for i, m := range all {
						b, err := m.Books()
						if err != nil || b.Multicasts != 1 || b.Unknown != "" || b.Exports+b.Imports != min(processes-1, 1) || (b.Exports == 1) != (processes > 1 && i == 1) {
							t.Fatalf("%+v, %v", b, err)
						}
						if err := m.Release(); err == nil {
							t.Error("it was released with a multicast object")
						}
					}
					a.apart(all)
					a.Waits()
					for _, m := range all {
						one := &app{App: a.App, rig: r, t: t}
						one.driver(k.Lock(t.Context(), []int{m.pid}, patient))
						one.driver(k.Checkpoint(t.Context(), []int{m.pid}))
						one.driver(k.Restore(t.Context(), []int{m.pid}, nil))
						one.driver(k.Unlock(t.Context(), []int{m.pid}))
					}
					a.attached(all)
					for _, m := range all {
						if err := m.Open(); err == nil {
							t.Error("the gate opens without the multicast object")
						}
						if err := m.Bind(); err == nil {
							t.Error("it binds to an object that is not there")
						}
					}
					a.Must(a.imports(all))
					a.Must(a.joined(all))
					a.Must(a.joined(all)) // a second time, as a host does whose first conversation broke off
					a.opened(all)
					for _, m := range all {
						m.forget()
					}
					a.changes(round + 3)
				}
				a.Does("leave")
				a.works()
				for _, m := range a.closed() {
					if b, err := m.Books(); err != nil || b.Multicasts != 0 || b.Unknown != "" || len(m.passed) != 0 {
						t.Errorf("%+v, %v, %d descriptors", b, err, len(m.passed))
					}
					a.Must(m.Release())
				}
			})
		}
	}
}

// TestMulticastOtherDevices restores processes onto each other's devices.
func TestMulticastOtherDevices(t *testing.T) {
	r := newRig(t, sizes(2)...)
	r.Env = append(r.Env, localMemory...)
	k := newHelper(t, r)
	a := r.team(2)
	all := a.closed()
	a.apart(all)
	pairs := []device.DevicePair{{Old: r.Devices[0], New: r.Devices[1]}, {Old: r.Devices[1], New: r.Devices[0]}}
	for i, m := range all {
		a.driver(k.Lock(t.Context(), []int{m.pid}, patient))
		a.driver(k.Checkpoint(t.Context(), []int{m.pid}))
		a.driver(k.Restore(t.Context(), []int{m.pid}, pairs))
		a.driver(k.Unlock(t.Context(), []int{m.pid}))
		m.files = r.elsewhere(1-i, m.files)
	}
	a.attached(all)
	a.Must(a.imports(all))
	a.Must(a.joined(all))
	a.opened(all)
	a.changes(2)
}

// TestMulticastFails has each call fail once that takes multicast objects apart, in each process: all have them again, by Bind alone where nothing was released.
func TestMulticastFails(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		for call, times := range map[string]int{"cuMulticastUnbind": 2, "cuMemUnmap": 2 * (processes - 1), "cuMemRelease": processes} {
			if processes == 1 && call == "cuMemUnmap" {
				times = 1
			}
			t.Run(fmt.Sprintf("%s in %d", call, processes), func(t *testing.T) {
				r := newRig(t, sizes(2)...)
				a := r.team(processes, "--share", "2")
				for turn := range times * processes {
					all := a.closed()
					failing := turn%processes + 1
					orders := slices.Repeat([]string{fmt.Sprintf("%s %d pass", call, failing)}, turn/processes)
					r.Order(append(orders, fmt.Sprintf("%s %d error 1", call, failing))...)
					failed, apart := 0, false
					for _, m := range all {
						if m.Unbind() != nil {
							failed++
						}
					}
					if failed == 0 {
						apart = true
						for _, m := range all {
							if m.Part() != nil {
								failed++
							}
						}
					}
					r.Order()
					// The first process has bound its memory by one call, the second by two.
					if failed != 1 && (call != "cuMulticastUnbind" || processes == 1 || turn != 2) || apart && call == "cuMulticastUnbind" && failed > 0 {
						t.Errorf("turn %d: %d processes failed, and others were parted: %v", turn, failed, apart)
					}
					for _, m := range all {
						a.Must(m.HangUp())
					}
					a.Waits()
					a.attached(all)
					if apart {
						a.Must(a.imports(all))
						a.Must(a.joined(all))
					}
					for _, m := range all {
						a.Must(m.Bind())
					}
					a.opened(all)
					for _, m := range all {
						m.forget()
					}
					a.changes(turn + 2)
				}
			})
		}
	}
}

// TestMulticastNotBack has each call fail once that puts multicast objects together: the gates stay closed, and all have them at the next attempt.
func TestMulticastNotBack(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		for _, call := range []string{"cuMulticastCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMulticastAddDevice", "cuMulticastBindMem", "cuMemMap", "cuMemSetAccess"} {
			if processes == 1 && call[:6] == "cuMemE" || processes == 1 && call[:6] == "cuMemI" {
				continue
			}
			t.Run(fmt.Sprintf("%s in %d", call, processes), func(t *testing.T) {
				r := newRig(t, sizes(2)...)
				a := r.team(processes)
				for pass := range 2 {
					all := a.closed()
					a.apart(all)
					a.attached(all)
					r.Order(append(slices.Repeat([]string{call + " * pass"}, pass), call+" * error 2")...)
					together := func() error {
						if err := a.imports(all); err != nil {
							return err
						}
						return a.joined(all)
					}
					if err := together(); err == nil && (pass == 0 || call == "cuMulticastAddDevice" || call == "cuMulticastBindMem" || processes == 2 && (call == "cuMemMap" || call == "cuMemSetAccess")) {
						t.Error("they came back by a call that failed")
					}
					r.Order()
					for _, m := range all {
						a.Must(m.HangUp())
					}
					a.Waits()
					a.attached(all)
					a.Must(together())
					a.opened(all)
					for _, m := range all {
						m.forget()
					}
					a.changes(pass + 2)
				}
			})
		}
	}
}

// TestMulticastUnknown has objects that the library does not look after.
func TestMulticastUnknown(t *testing.T) {
	r := newRig(t, sizes(2)...)
	a := r.team(1, "--fabric")
	a.changes(2)
	p, _ := a.dial()
	if b, err := p.Books(); err != nil || b.Multicasts != 0 || b.Unknown == "" || !b.Wild {
		t.Errorf("%+v, %v", b, err)
	}
	a.Must(p.HangUp())
	a.changes(3)
}

// TestMulticastHangs: without the library the checkpoint of a process with an object does not end, which is what the other tests would meet.
func TestMulticastHangs(t *testing.T) {
	r := newRig(t, sizes(2)...)
	r.Env = nil
	k := newHelper(t, r)
	a := r.team(1)
	a.driver(k.Lock(t.Context(), []int{a.PID}, patient))
	ended := make(chan error, 1)
	go func() {
		_, err := k.Checkpoint(t.Context(), []int{a.PID})
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Errorf("it ended: %v", err)
	case <-time.After(500 * time.Millisecond):
		a.Must(k.Kill())
		if err := <-ended; err == nil {
			t.Error("it ended when its asker did")
		}
	}
}
