package gpu

import (
	"testing"
	"time"
)

// TestLockAgain: what waits for the kernel of a process that stands already gets its chance, and is locked then.
func TestLockAgain(t *testing.T) {
	w := newWorld(t, 101, 102)
	w.fail, w.how = "lock 102", "600"
	e := w.engine()
	e.Timeout = 10 * time.Second
	if _, err := e.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := "lock 101, lock 102, unlock 101, lock 101, lock 102, checkpoint 101, checkpoint 102"
	if got := w.steps("lock", "unlock", "checkpoint"); got != want {
		t.Errorf("did %s, want %s", got, want)
	}
	if err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settled()
}

// TestLockAgainFails: where a kernel never ends, all run on at the deadline.
func TestLockAgainFails(t *testing.T) {
	w := newWorld(t, 101, 102)
	w.fail, w.how, w.always = "lock 102", "600", true
	e := w.engine()
	e.Timeout = 400 * time.Millisecond
	if _, err := e.Save(t.Context()); err == nil {
		t.Fatal("locked although a kernel never ends")
	}
	w.settled()
}
