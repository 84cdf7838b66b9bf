package runc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFenceStream cuts a stream of numbers again and again: none is lost, and none comes twice.
func TestFenceStream(t *testing.T) {
	a, b := places(t)
	l := b.listen("tcp", "10.9.0.2:7000")
	client := a.dial("tcp", "10.9.0.2:7000")
	server := accept(t, l)
	var sent, read atomic.Uint64
	var stop atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		defer client.Close()
		w := bufio.NewWriter(client)
		for ; !stop.Load(); sent.Add(1) {
			if err := binary.Write(w, binary.BigEndian, sent.Load()); err != nil {
				t.Errorf("write: %v", err)
				return
			}
		}
		if err := w.Flush(); err != nil {
			t.Errorf("write: %v", err)
		}
	})
	all.Go(func() {
		r := bufio.NewReader(server)
		for {
			var number uint64
			switch err := binary.Read(r, binary.BigEndian, &number); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				t.Errorf("read: %v", err)
				return
			case number != read.Load():
				t.Errorf("number %d comes where %d should", number, read.Load())
				return
			}
			read.Add(1)
		}
	})
	for _, length := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		for end, p := range map[string]place{"sender": a, "receiver": b} {
			began := time.Now()
			f, err := p.network.Fence(p.sockets())
			if err != nil {
				t.Fatal(err)
			}
			cutting := time.Since(began)
			time.Sleep(5 * time.Millisecond) // for what another processor is at work on
			before := received(t, server)
			time.Sleep(length)
			if now := received(t, server); now != before {
				t.Errorf("%d bytes pass the fence of the %s", now-before, end)
			}
			held := time.Since(began)
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			closed := time.Now()
			for received(t, server) == before {
				if time.Since(closed) > time.Minute {
					t.Fatal("the stream does not go on")
				}
				time.Sleep(time.Millisecond)
			}
			t.Logf("at the %s: cut within %s, for %s; the stream went on after %s", end, cutting, held, time.Since(closed))
			time.Sleep(50 * time.Millisecond)
		}
	}
	stop.Store(true)
	all.Wait()
	if sent.Load() != read.Load() {
		t.Errorf("%d numbers were sent, %d have come", sent.Load(), read.Load())
	}
}

// received returns how many bytes of a stream have come, whether they are read or not.
func received(t *testing.T, c net.Conn) (bytes uint64) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, failed = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); failed == nil {
			bytes = info.Bytes_received
		}
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return bytes
}

// TestFenceQuiet: a connection on which all was acknowledged before the fence goes on at once when it is gone.
func TestFenceQuiet(t *testing.T) {
	a, b := places(t)
	l := b.listen("tcp", "10.9.0.2:7000")
	client := a.dial("tcp", "10.9.0.2:7000")
	server := accept(t, l)
	if !passes(t, client, server, aliveTime) {
		t.Fatal("nothing passes")
	}
	for deadline := time.Now().Add(aliveTime); a.sockets().Unacknowledged > 0; {
		if time.Now().After(deadline) {
			t.Fatal("a byte that has come stays unacknowledged")
		}
	}
	const tries, usual = 5, 150 * time.Millisecond // less than the time after which TCP sends again
	for try := 1; ; try++ {
		both := []*Fence{}
		for _, p := range []place{a, b} {
			f, err := p.network.Fence(p.sockets())
			if err != nil {
				t.Fatal(err)
			}
			both = append(both, f)
		}
		time.Sleep(500 * time.Millisecond)
		for _, f := range both {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		closed := time.Now()
		if !passes(t, client, server, aliveTime) {
			t.Fatal("nothing passes")
		}
		took := time.Since(closed)
		if t.Logf("a byte came after %s", took); took < usual {
			break
		}
		if try == tries { // else the machine was busy
			t.Fatalf("it took %s until a byte came", took)
		}
	}
}

// TestFenceWritten: what a program writes behind a fence comes when the fence is gone. The log has how long that takes.
func TestFenceWritten(t *testing.T) {
	a, b := places(t)
	l := b.listen("tcp", "10.9.0.2:7000")
	client := a.dial("tcp", "10.9.0.2:7000")
	server := accept(t, l)
	for _, length := range []time.Duration{0, 3 * time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond, time.Second} {
		if !passes(t, client, server, aliveTime) || !passes(t, server, client, aliveTime) {
			t.Fatal("nothing passes")
		}
		f, err := a.network.Fence(a.sockets())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(length)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		closed := time.Now()
		if !arrives(t, server, aliveTime) {
			t.Fatal("what was written does not come")
		}
		t.Logf("written %s before the end of the fence, it came after %s", length, time.Since(closed))
	}
}
