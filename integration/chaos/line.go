package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// line carries TCP between the hosts and the registry, well or badly.
type line struct {
	address  string // hosts connect here
	to       string
	listener net.Listener

	mu    sync.Mutex
	state lineState             // guarded by mu
	open  map[net.Conn]struct{} // guarded by mu
}

// lineState is how the line is. The zero value is a good one.
type lineState struct {
	rate    int           // bytes a second, each connection and direction; 0: as fast as it goes
	latency time.Duration // of each piece
	loss    float64       // share of pieces that are lost, which costs them 200 ms
	dark    bool          // nothing gets through, and nobody is told
	refuse  bool          // connections are closed at once
	answer  string        // what each request is answered with, without the registry; empty: it answers
}

func openLine(ip, to string) (*line, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return nil, fmt.Errorf("open a line: %w", err)
	}
	l := &line{address: listener.Addr().String(), to: to, listener: listener, open: map[net.Conn]struct{}{}}
	go l.serve()
	return l, nil
}

func (l *line) serve() {
	for {
		c, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go l.carry(c)
		}
	}
}

// carry connects one client with the registry.
func (l *line) carry(c net.Conn) {
	defer c.Close()
	switch s := l.now(); {
	case s.refuse:
		return
	case s.answer != "":
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, s.answer) // the client may have gone
		}
		return
	}
	up, err := net.Dial("tcp", l.to)
	if err != nil {
		return // as if the registry had closed it
	}
	defer up.Close()
	l.mu.Lock()
	l.open[c], l.open[up] = struct{}{}, struct{}{}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, c)
		delete(l.open, up)
	}()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{c, up}, {up, c}} {
		go func() {
			l.copy(pair[1], pair[0])
			if t, ok := pair[1].(*net.TCPConn); ok {
				_ = t.CloseWrite() // it may be closed
			}
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}

func (l *line) copy(to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			s := l.now()
			for ; s.dark; s = l.now() {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(s.latency)
			if rand.Float64() < s.loss {
				time.Sleep(200 * time.Millisecond) // Linux's least time until it sends again
			}
			if s.rate > 0 {
				time.Sleep(time.Duration(float64(n) / float64(s.rate) * float64(time.Second)))
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *line) now() lineState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// become makes the line another.
func (l *line) become(s lineState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
}

// cut closes every connection.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // the other end sees a reset
		}
		_ = c.Close()
	}
}

func (l *line) close() {
	_ = l.listener.Close()
	l.become(lineState{})
	l.cut()
}
