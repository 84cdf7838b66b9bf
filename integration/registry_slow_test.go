package integration

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/integration/lab"
)

const slowMiB = 16

// TestArrivingSlowly restores a container over a slow line that at once reads all of its memory, in an order that nobody can guess. It never stands still
// for longer than three times what it waits for takes on the line: while it waits for one frame, no more than three come. And nothing
// comes twice.
func TestArrivingSlowly(t *testing.T) {
	b, _ := pair(t) // it has the base image
	id := name(t)
	path := "arriving/" + id + ":1"
	start(t, b, id, nil, "workload", "bench", "--memory", strconv.Itoa(slowMiB))
	pushed := shared.registry.Reference(path)
	must(t, b.Cryo(t.Context(), "checkpoint", id, pushed, "--push", "--plain-http", "--segment-size", "4MiB"))
	size := said[snapshot](t, b.Cryo(t.Context(), "inspect", pushed, "--json")).Size
	remove(t.Context(), b, id)
	must(t, b.Cryo(t.Context(), "rm", pushed))

	for name, command := range map[string][]string{"as it is": nil, "as if with many cores": {"env", "GOMAXPROCS=16"}} {
		t.Run(name, func(t *testing.T) { readSlowly(t, b, path, size, command) })
	}
}

// readSlowly restores it by a command.
func readSlowly(t *testing.T, b *lab.Host, path string, size int64, command []string) {
	l := newLine(t, shared.registry)
	l.Rate.Store(2 << 20)
	ref, id := l.Address+"/"+path, name(t)
	cleanup(t, b, id)
	forget(t, b, ref)
	began := time.Now()
	args := append(command, "cryo", "restore", ref, "--name", id, "--plain-http", "--wait", "--json")
	c := under(t, b.Command(t.Context(), args[0], args[1:]...))
	c.hello(t, b, id)
	t.Logf("it answers after %s, with %d bytes here", time.Since(began), l.Received.Load())
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
		if now == slowMiB<<20/4096 {
			break
		}
	}
	t.Logf("all read after %s, one page in %s s at most", time.Since(began), <-reading)
	if most > 3*index.MaxFrame {
		t.Errorf("while it stood still %d bytes came", most)
	}
	must(t, <-c.ended)
	t.Logf("all here after %s; while it stood still %d bytes came at most", time.Since(began), most)
	if got := l.Received.Load(); got > size+size/20 {
		t.Errorf("%d bytes came, of a snapshot of %d", got, size)
	}
}
