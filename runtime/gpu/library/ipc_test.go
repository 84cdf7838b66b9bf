package library

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/gputest"
)

// lend has a program make a handle of one of its allocations, and returns the sum of what is in it.
func (a *app) lend(block int) (handle string, sum uint64) {
	a.t.Helper()
	p := a.Does(fmt.Sprintf("lend %d", block)).State.Processes[0]
	return p.Handle, p.Sum
}

// borrows fails the test unless a program can open a handle, and finds what it is to be of.
func (a *app) borrows(handle string, sum uint64) {
	a.t.Helper()
	if got := a.Does("borrow " + handle).State.Processes[0].Sum; got != sum {
		a.t.Fatalf("sum %x, want %x", got, sum)
	}
}

// fails fails the test unless a command fails with one of the driver's codes.
func (a *app) fails(command string, codes ...int) {
	a.t.Helper()
	got, err := a.Ask(command, patient)
	for _, code := range codes {
		if err == nil && !got.OK && strings.HasSuffix(got.Error, fmt.Sprintf("the driver says %d", code)) {
			return
		}
	}
	a.t.Fatalf("%s: %+v, %v, want %v", command, got, err, codes)
}

// quiet fails the test if a program has sockets beside the one that it answers at; questions that were answered are closed soon.
func (a *app) quiet() {
	a.t.Helper()
	for begin := time.Now(); links(a.t, a.PID, "socket:") > 1; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > patient {
			a.t.Fatalf("%d sockets are open", links(a.t, a.PID, "socket:"))
		}
	}
}

// TestIPC shares allocations of the library's, of several pieces and of more than go with one message, and one of the driver's.
func TestIPC(t *testing.T) {
	const large = 17 * 8 // MiB, in pieces of 8
	r := newRig(t, 2*large)
	r.Env = append(r.Env, "CRYO_GPU_PIECE_BYTES=2097152")
	owner, other := r.run("--blocks", fmt.Sprintf("5,1,%d,64", large)), r.run("--blocks", "2")
	for block := range 4 {
		handle, sum := owner.lend(block)
		if again, _ := owner.lend(block); again != handle {
			t.Errorf("another handle of the same memory:\n%s\n%s", handle, again)
		}
		other.borrows(handle, sum)
		other.borrows(handle, sum)
		other.Does("return")
		if got := other.Does("borrowed").State.Processes[0].Sum; got != 0 {
			t.Errorf("sum %x of nothing", got)
		}
		owner.quiet()
		other.quiet()
	}
	owner.works()
	other.works()
	for _, a := range []*app{owner, other} {
		if _, h := a.dial(); h.Unable == "" { // the driver's was among them
			t.Errorf("%+v", h)
		}
	}
}

// TestIPCHandedOver hands over memory that was opened by a handle, in several pieces, and what its owner has of it, and brings both back.
func TestIPCHandedOver(t *testing.T) {
	r := newRig(t, 256)
	r.Env = append(r.Env, localMemory...)
	owner, other := r.run("--blocks", "5,40"), r.run("--blocks", "2")
	for block := range 2 {
		handle, sum := owner.lend(block)
		other.borrows(handle, sum)
	}
	_, sum := owner.lend(1) // what is opened last is asked for
	k := newHelper(t, r)
	for round := range 2 {
		all := append(owner.closed(), other.closed()...)
		if exports, imports := count(append(slices.Clone(all[0].passed), all[1].passed...)); imports != exports || imports < 12 {
			t.Errorf("%d exports, %d imports", exports, imports)
		}
		for _, m := range all {
			owner.Must(m.Part())
		}
		for _, m := range all {
			owner.Must(m.Release())
			owner.Must(m.HangUp())
		}
		for _, a := range []*app{owner, other} {
			a.save(k)
			a.load(k)
		}
		owner.shares(all)
		if got := other.Does("borrowed").State.Processes[0].Sum; got != sum {
			t.Errorf("round %d: sum %x, want %x", round, got, sum)
		}
		owner.Does(fmt.Sprintf("change %d", 5+round))
		handle, now := owner.lend(1)
		sum = now
		if got := other.Does("borrowed").State.Processes[0].Sum; got != sum {
			t.Errorf("round %d: sum %x of what the owner has written, want %x", round, got, sum)
		}
		r.run("--blocks", "2").borrows(handle, sum)
		owner.works()
		other.works()
	}
	other.Does("return")
	other.works()
}

// TestIPCForged changes each field of a handle. The owner opens nothing for it, whichever process asks.
func TestIPCForged(t *testing.T) {
	r := newRig(t, 64)
	owner := r.run("--blocks", "5")
	r.hasten()
	other := r.run("--blocks", "2")
	handle, sum := owner.lend(0)
	changed := func(at int) string {
		digit := "0"
		if handle[2*at] == '0' {
			digit = "1"
		}
		return handle[:2*at] + digit + handle[2*at+1:]
	}
	// The mark, the process and the thread, the owner's random number, the allocation's, and its secret. An owner that does not answer is waited for.
	for _, at := range []int{0, 7, 8, 12, 16, 32, 39, 40, 55} {
		other.fails("borrow "+changed(at), 1, 304)
	}
	// More than there is.
	other.fails("borrow "+changed(63), 1)
	other.borrows(handle, sum)
	owner.works()
	other.works()
	owner.quiet()
	other.quiet()
}

// TestIPCEnds has either side die, and the owner free what another has open.
func TestIPCEnds(t *testing.T) {
	r := newRig(t, 128)
	owner, other, third := r.run("--blocks", "5"), r.run("--blocks", "2"), r.run("--blocks", "2")
	handle, sum := owner.lend(0)
	other.borrows(handle, sum)
	third.borrows(handle, sum)
	third.Kill()
	owner.works()
	other.borrows(handle, sum)
	owner.Does("drop")
	if got := other.Does("borrowed").State.Processes[0].Sum; got != sum {
		t.Errorf("sum %x after its owner has freed it, want %x", got, sum)
	}
	fourth := r.run("--blocks", "2")
	fourth.fails("borrow "+handle, 1)
	handle, sum = owner.lend(0)
	fourth.borrows(handle, sum)
	owner.Kill()
	if got := fourth.Does("borrowed").State.Processes[0].Sum; got != sum {
		t.Errorf("sum %x after its owner has died, want %x", got, sum)
	}
	r.run("--blocks", "2").fails("borrow "+handle, 1)
	fourth.Does("return")
	fourth.works()
}

// TestIPCStopped has a handle opened while its owner stands still: it waits. Who asked and is gone by then leaves nothing.
func TestIPCStopped(t *testing.T) {
	r := newRig(t, 128)
	owner, other, third := r.run("--blocks", "64"), r.run("--blocks", "2"), r.run("--blocks", "2")
	handle, sum := owner.lend(0)
	if err := syscall.Kill(owner.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if got, err := third.Ask("borrow "+handle, 300*time.Millisecond); err == nil {
		t.Errorf("opened while its owner is stopped: %+v", got)
	}
	third.Kill()
	go func() {
		time.Sleep(200 * time.Millisecond)
		_ = syscall.Kill(owner.PID, syscall.SIGCONT)
	}()
	other.borrows(handle, sum)
	owner.works()
	owner.quiet()
	other.quiet()
}

// TestIPCBoth has two programs open each other's memory at once, and fork meanwhile: neither waits for the other for good, and children have nothing.
func TestIPCBoth(t *testing.T) {
	r := newRig(t, 128)
	a, b := r.run("--blocks", "5,9"), r.run("--blocks", "7,3")
	handleA, sumA := a.lend(0)
	handleB, sumB := b.lend(0)
	failed := make(chan error, 2)
	rounds := func(a *app, handle string, sum uint64) {
		for range 20 {
			for _, command := range []string{"borrow " + handle, "return", "fork"} {
				got, err := a.Ask(command, patient)
				if err != nil || !got.OK || (strings.HasPrefix(command, "borrow") && got.State.Processes[0].Sum != sum) {
					failed <- fmt.Errorf("%s: %+v, %v", command, got, err)
					return
				}
			}
		}
		failed <- nil
	}
	go rounds(a, handleB, sumB)
	go rounds(b, handleA, sumA)
	for range 2 {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	a.quiet()
	b.quiet()
	a.works()
	b.works()
}

// TestIPCNamespaces refuses what is in other namespaces: the host takes processes that share an IPC namespace for those that may share memory.
func TestIPCNamespaces(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ipc", "net"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t, 64)
			owner := r.run("--blocks", "5")
			handle, sum := owner.lend(0)
			r.run("--blocks", "2").borrows(handle, sum)
			r.Wrapper = filepath.Join(t.TempDir(), "unshare")
			gputest.Script(t, r.Wrapper, "#!/bin/sh\nexec unshare --"+kind+" \"$@\"\n")
			other := r.run("--blocks", "2")
			other.fails("borrow "+handle, 1)
			other.works()
			owner.works()
		})
	}
}

// TestIPCClosing opens memory while a host talks to the owner's library, its gate closed or open. What is asked for when the host has taken the owner's memory waits until the gate is open again.
func TestIPCClosing(t *testing.T) {
	r := newRig(t, 128)
	owner, other := r.run("--blocks", "5"), r.run("--blocks", "2")
	handle, sum := owner.lend(0)
	p, _ := owner.dial()
	other.borrows(handle, sum)
	other.Does("return")
	owner.Must(p.Close(t.Context(), patient))
	other.borrows(handle, sum)
	other.Does("return")
	owner.given(p)
	failed := make(chan error, 1)
	go func() {
		got, err := other.Ask("borrow "+handle, patient)
		if err == nil && (!got.OK || got.State.Processes[0].Sum != sum) {
			err = fmt.Errorf("%+v", got)
		}
		failed <- err
	}()
	select {
	case err := <-failed:
		t.Errorf("opened when its owner has given its memory: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	owner.Must(p.Open())
	owner.Must(p.HangUp())
	if err := <-failed; err != nil {
		t.Error(err)
	}
	owner.works()
	other.works()
	owner.quiet()
	owner.whole()
}
