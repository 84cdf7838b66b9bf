package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// ring is a member of a ring: it sends numbered messages to the next member, and takes those of the one before. Each is acknowledged by its number. None may be missing, or come twice.
type ring struct {
	sent, acknowledged, taken atomic.Uint64
	failed                    atomic.Pointer[error]
}

// ringWindow is how many messages may be under way, and after how many a member rests. ringMessage is how long each is, bytes.
const ringWindow, ringMessage = 256, 4096

func startRing(flags *flag.FlagSet, args []string) (workload, error) {
	listen := flags.String("listen", "0.0.0.0:7100", "address for the member before")
	next := flags.String("next", "", "address of the next member")
	rest := flags.Duration("rest", time.Millisecond, "how long to send nothing after each 256 messages: the machine has others to run")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if *next == "" {
		return nil, errors.New("--next is missing")
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return nil, err
	}
	r := &ring{}
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = r.take(c)
		}
		r.fail(fmt.Errorf("take messages: %w", err))
	}()
	go func() { r.fail(fmt.Errorf("send messages: %w", r.send(*next, *rest))) }()
	return r, nil
}

// fail keeps the first failure, and prints it.
func (r *ring) fail(err error) {
	if r.failed.CompareAndSwap(nil, &err) {
		fmt.Fprintln(os.Stderr, "ring:", err)
	}
}

// send connects to the next member, which may not listen yet, and sends without end.
func (r *ring) send(next string, rest time.Duration) error {
	var c net.Conn
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if c, err = net.Dial("tcp", next); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return err
		}
	}
	room := make(chan struct{}, ringWindow)
	ended := make(chan error, 1)
	go func() {
		var number [8]byte
		for {
			if _, err := io.ReadFull(c, number[:]); err != nil {
				ended <- err
				return
			}
			if got, want := binary.BigEndian.Uint64(number[:]), r.acknowledged.Load()+1; got != want {
				ended <- fmt.Errorf("message %d is acknowledged, not %d", got, want)
				return
			}
			r.acknowledged.Add(1)
			<-room
		}
	}()
	message := make([]byte, ringMessage)
	for {
		select {
		case err := <-ended:
			return err
		case room <- struct{}{}:
		}
		binary.BigEndian.PutUint64(message, r.sent.Load()+1)
		if _, err := c.Write(message); err != nil {
			return err
		}
		r.sent.Add(1)
		if r.sent.Load()%ringWindow == 0 {
			time.Sleep(rest)
		}
	}
}

// take takes messages of the member before.
func (r *ring) take(c net.Conn) error {
	message := make([]byte, ringMessage)
	for {
		if _, err := io.ReadFull(c, message); err != nil {
			return err
		}
		if got, want := binary.BigEndian.Uint64(message), r.taken.Load()+1; got != want {
			return fmt.Errorf("message %d came, not %d", got, want)
		}
		r.taken.Add(1)
		if _, err := c.Write(message[:8]); err != nil {
			return err
		}
	}
}

// Check reports how many messages went, and what has failed.
func (r *ring) Check() (map[string]any, error) {
	state := map[string]any{"sent": r.sent.Load(), "acknowledged": r.acknowledged.Load(), "taken": r.taken.Load()}
	if failed := r.failed.Load(); failed != nil {
		return state, *failed
	}
	return state, nil
}
