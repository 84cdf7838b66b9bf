package library

import (
	"testing"
)

// TestPeers has a process whose GPUs have access to each other's memory handed over, saved by the driver and brought back: access is there again. The driver would lose it with access in place, or
// with memory made before access is given.
func TestPeers(t *testing.T) {
	r := newRig(t, 256, 256)
	r.Env = append(r.Env, localMemory...)
	k := newHelper(t, r)
	a := r.run("--peer", "--blocks", "1,6,9")
	for range 3 {
		p, _ := a.dial()
		if b, err := p.Books(); err != nil || b.Peers != 1 || b.Unknown != "" {
			t.Fatalf("%+v, %v", b, err)
		}
		a.Must(p.HangUp())
		pieces, files := a.take()
		a.save(k)
		a.load(k)
		a.back(pieces, files)
		a.works()
	}
	a.Does("drop")
	a.works()
	p, _ := a.dial()
	if b, err := p.Books(); err != nil || b.Peers != 1 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestPeersFail has access fail to be taken away, and to be given back once: in the end all is there.
func TestPeersFail(t *testing.T) {
	r := newRig(t, 256, 256)
	a := r.run("--peer", "--blocks", "6")
	p, _ := a.dial()
	a.Must(p.Close(t.Context(), patient))
	pieces, files := a.given(p)
	a.Must(p.Part())
	r.Order("cuCtxDisablePeerAccess * error 999")
	if err := p.Release(); err == nil {
		t.Error("it was released by a call that failed")
	}
	a.Must(p.HangUp())
	a.back(pieces, files)
	a.works()
	pieces, files = a.take()
	r.Order("cuCtxEnablePeerAccess * error 999")
	p, _ = a.dial()
	if err := p.Attach(t.Context(), pieces, files); err == nil {
		t.Error("it came back by a call that failed")
	}
	a.Must(p.HangUp())
	a.back(pieces, files)
	a.works()
}
