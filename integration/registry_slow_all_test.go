package integration

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/integration/lab"
)

// TestArrivingSlowly restores a container over a slow line that at once reads all of its memory, in an order that nobody can guess. It never stands still
// for longer than three times what it waits for takes on the line: while it waits for one frame, no more than three come. And nothing
// comes twice.
func TestArrivingSlowly(t *testing.T) {
	b, _ := pair(t) // it has the base image
	s := slowPull{host: b, mib: 16, rate: 2 << 20, most: 3 * format.MaxFrame}
	s.push(t)
	for name, command := range map[string][]string{"as it is": nil, "as if with many cores": {"env", "GOMAXPROCS=16"}} {
		t.Run(name, func(t *testing.T) { s.read(t, command) })
	}
}

// TestArrivingLate has a container read its memory when the pull of the rest has just begun, on a line of which nothing is known then: no more of the rest is in the way than a frame that is fetched ahead, and nothing comes twice.
func TestArrivingLate(t *testing.T) {
	b, _ := pair(t)
	s := slowPull{host: b, mib: 4, rate: 500 << 10, idle: 300 * time.Millisecond, most: format.MaxFrame * 9 / 4}
	s.push(t)
	s.read(t, nil)
}

// slowPull is a snapshot that is restored over a slow line.
type slowPull struct {
	host *lab.Host
	mib  int64         // of memory
	rate int64         // of the line, bytes a second
	idle time.Duration // before its memory is read
	most int64         // bytes that may come while it stands still

	path string
	size int64
}

// push takes and pushes the snapshot.
func (s *slowPull) push(t *testing.T) {
	t.Helper()
	id := name(t)
	s.path = "arriving/" + id + ":1"
	start(t, s.host, id, nil, "workload", "bench", "--memory", strconv.FormatInt(s.mib, 10))
	pushed := shared.registry.Reference(s.path)
	must(t, s.host.Cryo(t.Context(), "checkpoint", id, pushed, "--push", "--plain-http", "--segment-size", "4MiB"))
	s.size = said[snapshot](t, s.host.Cryo(t.Context(), "inspect", pushed, "--json")).Size
	remove(t.Context(), s.host, id)
	must(t, s.host.Cryo(t.Context(), "rm", pushed))
}

// read restores it by a command, and reads its memory.
func (s *slowPull) read(t *testing.T, command []string) {
	b, path, size := s.host, s.path, s.size
	l := newLine(t, shared.registry)
	l.Rate.Store(s.rate)
	ref, id := l.Address+"/"+path, name(t)
	cleanup(t, b, id)
	forget(t, b, ref)
	began := time.Now()
	args := append(command, "cryo", "restore", ref, "--name", id, "--plain-http", "--wait", "--json")
	c := under(t, b.Command(t.Context(), args[0], args[1:]...))
	c.hello(t, b, id)
	t.Logf("it answers after %s, with %d bytes here", time.Since(began), l.Received.Load())
	time.Sleep(s.idle)
	reading := make(chan string, 1)
	go func() {
		a, err := b.Ask(t.Context(), id, "scatter")
		reading <- fmt.Sprint(a.State["longest"], err)
	}()
	var most, read, since int64
	for since = l.Received.Load(); ; time.Sleep(5 * time.Millisecond) {
		a, err := b.Ask(t.Context(), id, "check")
		if err != nil {
			t.Fatal(err)
		}
		now := int64(a.State["read"].(float64))
		if now != read {
			read, since = now, l.Received.Load()
		}
		most = max(most, l.Received.Load()-since)
		if now == s.mib<<20/4096 {
			break
		}
	}
	t.Logf("all read after %s, one page in %s s at most", time.Since(began), <-reading)
	if most > s.most {
		t.Errorf("while it stood still %d bytes came", most)
	}
	must(t, <-c.ended)
	t.Logf("all here after %s; while it stood still %d bytes came at most", time.Since(began), most)
	if got := l.Received.Load(); got > size+size/10 {
		t.Errorf("%d bytes came, of a snapshot of %d", got, size)
	}
}
