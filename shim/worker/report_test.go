package worker

import (
	"strings"
	"testing"
	"time"
)

// TestReport: all but progress arrives, long news too, and a command that hangs up hears what comes later.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenReport(dir); err == nil {
		t.Error("a report is opened for which no command waits")
	}
	l, err := ListenForReport(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := OpenReport(dir)
	if err != nil {
		t.Fatal(err)
	}
	from, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() {
		_ = r.Left()
		close(left)
	}()
	long := strings.Repeat("x", 200_000)
	hears := func(want string) {
		t.Helper()
		for {
			var n News
			if _, err := from.Receive(&n); err != nil {
				t.Fatal(err)
			}
			if n.Log == want {
				return
			}
			if n.Log != "" {
				t.Fatalf("%d bytes arrive", len(n.Log))
			}
		}
	}
	go func() {
		for i := range 10_000 {
			r.Tell(News{Progress: &Progress{What: "a", Done: int64(i)}})
		}
		r.Tell(News{Log: long})
	}()
	hears(long)
	select {
	case <-left:
		t.Error("the command has left, it says, which has not")
	case <-time.After(10 * time.Millisecond):
	}
	if err := from.HangUp(); err != nil {
		t.Fatal(err)
	}
	<-left
	r.Tell(News{Log: "last"})
	hears("last")
	from.Close()
	r.Tell(News{Log: "too late"})
	r.Close()
	(*Report)(nil).Tell(News{})
	(*Report)(nil).Close()
}
