package library

import (
	"fmt"
	"testing"
)

// TestHostMemory has memory of the host with handles, which processes share, saved and gone around the driver's checkpoint: the driver would lose a process that has it mapped.
func TestHostMemory(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 3} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			r := newRig(t, 256)
			r.Env = append(r.Env, localMemory...)
			k := newHelper(t, r)
			a := r.run("--processes", fmt.Sprint(processes), "--share-host", "4", "--blocks", "2,3")
			a.works()
			for round := range 2 {
				all := a.closed()
				for _, m := range all {
					b, err := m.Books()
					if err != nil || b.Hosts != 1 || b.Unknown != "" || len(m.pieces) != 2 {
						t.Fatalf("%+v, %v, %d pieces", b, err, len(m.pieces))
					}
					for _, p := range m.passed {
						if p.Host == p.Import {
							t.Errorf("%+v", p)
						}
					}
					a.Must(m.Part())
				}
				for _, m := range all {
					a.Must(m.Release())
					a.Must(m.HangUp())
				}
				a.Waits()
				if processes == 1 {
					a.save(k)
					a.load(k)
				}
				a.shares(all)
				a.works()
				a.Does(fmt.Sprintf("change %d", round+2))
				a.works()
			}
		})
	}
}

// TestHostMemoryFails has each call of the driver that takes it away, or brings it back, fail once: in the end all is there.
func TestHostMemoryFails(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		call  string
		least int // passes that are tried
	}{
		{"cuMemAddressReserve", 1}, {"cuMemMap", 2}, {"cuMemSetAccess", 2}, {"cuMemUnmap", 3}, {"cuMemRelease", 1},
	} {
		t.Run(test.call, func(t *testing.T) {
			r := newRig(t, 256)
			a := r.run("--share-host", "4", "--blocks", "2")
			for pass := range test.least {
				p, _ := a.dial()
				a.Must(p.Close(t.Context(), patient))
				pieces, files := a.given(p)
				a.Must(p.Part())
				var orders []string
				for range pass {
					orders = append(orders, test.call+" 1 pass")
				}
				r.Order(append(orders, test.call+" 1 error 2")...)
				released := p.Release()
				r.Order()
				a.Must(p.HangUp())
				p, h := a.dial()
				if (released == nil) != (h.State == Given) && released == nil {
					t.Errorf("%v, and it is %s", released, h.State)
				}
				if h.State == Given {
					r.Order(append(orders, test.call+" 1 error 2")...)
					if err := p.Attach(t.Context(), pieces, files); err != nil {
						a.Must(p.HangUp())
						p, _ = a.dial()
						r.Order()
						a.Must(p.Attach(t.Context(), pieces, files))
					}
					r.Order()
				}
				a.Must(p.Open())
				a.Must(p.HangUp())
				a.works()
			}
		})
	}
}
