package library

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// A device of a program with localMemory has local memory for the stacks of so many threads in each context.
const localThreads = 1024

var localMemory = []string{"FAKECUDA_LOCAL_THREADS=1024"}

// lowered is the limit around the driver's checkpoint, bytes.
const lowered = 256

// limits fails the test unless contexts have the limits that they should, and the memory for them.
func (a *app) limits(want ...int) {
	a.t.Helper()
	if got := a.Does("check").State.Processes[0].Limits; !slices.Equal(got, want) {
		a.t.Fatalf("limits of %v bytes, want %v", got, want)
	}
}

// saved fails the test unless the driver's last checkpoint had local memory for stacks of so many bytes in all, and nothing else but the program's counter.
func (a *app) saved(stacks int) {
	a.t.Helper()
	const counter = 4096
	if got := a.Does("check").State.Processes[0].Saved; got != stacks*localThreads+counter {
		a.t.Fatalf("the driver saved %d bytes, want %d", got, stacks*localThreads+counter)
	}
}

// TestLimits has the driver save a process that has handed its memory over, again and again: contexts have little local memory then, and afterwards
// what they had, be it the driver's or the program's choice.
func TestLimits(t *testing.T) {
	r := newRig(t, 256, 256, 256)
	r.Env = append(r.Env, localMemory...)
	k := newHelper(t, r)
	a := r.run("--blocks", "5,9")
	a.limits(1024, 1024, 1024)
	a.Does("limit 1 8192")
	a.Does("limit 2 128")
	for range 3 {
		pieces, files := a.take()
		a.save(k)
		a.load(k)
		a.back(pieces, files)
		a.limits(1024, 8192, 128)
		a.saved(2*lowered + 128)
		a.works()
	}
	a.Does("limit 0 2048")
	pieces, files := a.take()
	a.back(pieces, files)
	a.limits(2048, 8192, 128)
	// Whom nothing is taken from keeps what it has.
	p, _ := a.dial()
	a.Must(p.Close(t.Context(), patient))
	a.given(p)
	a.save(k)
	a.load(k)
	a.Must(p.HangUp())
	a.limits(2048, 8192, 128)
	if got := a.Does("check").State.Processes[0].Saved; got < (2048+8192+128)*localThreads {
		t.Errorf("the driver saved %d bytes", got)
	}
}

// TestLimitRefused has the driver refuse to tell or to set one of two limits: that context keeps its own, the other does not.
func TestLimitRefused(t *testing.T) {
	r := newRig(t, 256, 256)
	r.Env = append(r.Env, localMemory...)
	k := newHelper(t, r)
	a := r.run("--blocks", "5")
	a.Does("limit 0 2048")
	for _, test := range []struct {
		orders []string
		left   int // bytes
	}{
		{[]string{"cuCtxGetLimit * error 801"}, 2048 + lowered},
		{[]string{"cuCtxGetLimit * pass", "cuCtxGetLimit * error 801"}, lowered + 1024},
		{[]string{"cuCtxSetLimit * error 801"}, 2048 + lowered},
		{[]string{"cuCtxSetLimit * error 801 always"}, 2048 + 1024},
		// It says no, and does not say that nothing has changed.
		{[]string{"cuCtxSetLimit * error 999", "cuCtxGetLimit * pass", "cuCtxGetLimit * error 999"}, 2048 + lowered},
	} {
		r.Order(test.orders...)
		pieces, files := a.take()
		a.save(k)
		a.load(k)
		a.back(pieces, files)
		r.Order()
		a.limits(2048, 1024)
		a.saved(test.left)
	}
}

// TestLimitNotSetBack has the driver fail to give a context what it had, or give it less: nothing is attached, and the program does not go on
// before it has all.
func TestLimitNotSetBack(t *testing.T) {
	r := newRig(t, 256, 256)
	r.Env = append(r.Env, localMemory...)
	a := r.run("--blocks", "5,9")
	a.Does("limit 1 8192")
	for _, test := range []struct {
		orders []string
		code   int
	}{
		{[]string{"cuCtxSetLimit * error 2"}, 2},
		{[]string{"cuCtxSetLimit * pass", "cuCtxSetLimit * error 999"}, 999},
		{[]string{"stack * error 512"}, 1},
		{[]string{"cuCtxGetLimit * error 999"}, 999},
		{[]string{"cuMemImportFromShareableHandle * error 999"}, 999}, // after that
	} {
		pieces, files := a.take()
		r.Order(test.orders...)
		p, _ := a.dial()
		var call *device.CallError
		if err := p.Attach(t.Context(), pieces, files); !errors.As(err, &call) || call.Code != test.code {
			t.Fatalf("%q: %v", test.orders, err)
		}
		a.Must(p.HangUp())
		a.Waits()
		r.Order()
		a.back(pieces, files)
		a.limits(1024, 8192)
		a.works()
	}
}

// TestLimitNoRoom has somebody else take the room that a context's local memory had: memory is not attached before there is some.
func TestLimitNoRoom(t *testing.T) {
	r := newRig(t, 44)
	r.Env = append(r.Env, localMemory...)
	a := r.run("--blocks", "9")
	a.Does("limit 0 8192") // 8 MiB
	pieces, files := a.take()
	other := r.run("--blocks", "30")
	p, _ := a.dial()
	var call *device.CallError
	if err := p.Attach(t.Context(), pieces, files); !errors.As(err, &call) || call.Code != 2 {
		t.Fatal(err)
	}
	a.Must(p.HangUp())
	other.Kill()
	a.back(pieces, files)
	a.limits(8192)
	a.works()
}

// TestLimitLoweredLate has the driver not come back in time when the limit is lowered. What is done then comes when it has.
func TestLimitLoweredLate(t *testing.T) {
	r := newRig(t, 256)
	r.Env = append(r.Env, localMemory...)
	r.hasten()
	a := r.run("--blocks", "5")
	r.Order("cuCtxGetLimit * delay 7500")
	pieces, files := a.take()
	a.back(pieces, files)
	time.Sleep(time.Second) // what was not waited for would come now
	a.limits(1024)
	a.works()
}

// TestLimitSetBackLate has the driver not come back in time when the limit is set back. The next attempt begins when it has.
func TestLimitSetBackLate(t *testing.T) {
	r := newRig(t, 256)
	r.Env = append(r.Env, localMemory...)
	r.hasten()
	a := r.run("--blocks", "5")
	pieces, files := a.take()
	r.Order("cuCtxSetLimit * delay 7500")
	p, _ := a.dial()
	var call *device.CallError
	begin := time.Now()
	if err := p.Attach(t.Context(), pieces, files); !errors.As(err, &call) || call.Code != notReady || time.Since(begin) > 7500*time.Millisecond/haste {
		t.Fatal(err, time.Since(begin))
	}
	a.Must(p.HangUp())
	a.back(pieces, files)
	a.limits(1024)
	a.works()
}
