package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// socket is where a workload answers: environment WORKLOAD_SOCKET, or /srv/ask.sock.
func socket() string {
	if path := os.Getenv("WORKLOAD_SOCKET"); path != "" {
		return path
	}
	return "/srv/ask.sock"
}

// answer is one line of JSON, the reply to one line with a command and its arguments.
type answer struct {
	Kind  string         `json:"kind"`
	Life  string         `json:"life"` // random, chosen at the start
	PID   int            `json:"pid"`
	Count int64          `json:"count"`
	OK    bool           `json:"ok"`
	Error string         `json:"error,omitempty"`
	State map[string]any `json:"state,omitempty"`
}

// life tells a process that went on from one that was started again.
var life = rand.Text()

// serve answers in the background.
func serve(name string, w workload) error {
	_ = os.Remove(socket())
	l, err := net.Listen("unix", socket())
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(socket(), 0o666); err != nil {
		return fmt.Errorf("open socket to all: %w", err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, "workload: accept:", err)
				os.Exit(1)
			}
			go reply(c, name, w)
		}
	}()
	return nil
}

// reply answers one question: "check", "hello" (which looks at nothing), "exit STATUS", or what the workload itself knows.
func reply(c net.Conn, name string, w workload) {
	defer c.Close()
	buffer := make([]byte, 4096)
	n, err := c.Read(buffer)
	if err != nil {
		return
	}
	a := answer{Kind: name, Life: life, PID: os.Getpid(), OK: true}
	a.State, err = do(strings.Fields(string(buffer[:n])), w)
	a.Count = count.Load()
	if err != nil {
		a.OK, a.Error = false, err.Error()
	}
	_ = json.NewEncoder(c).Encode(a)
}

func do(words []string, w workload) (map[string]any, error) {
	if len(words) == 0 || words[0] == "check" {
		return w.Check()
	}
	if words[0] == "hello" {
		return nil, nil
	}
	if words[0] == "exit" && len(words) == 2 {
		status, err := strconv.Atoi(words[1])
		if err != nil {
			return nil, err
		}
		time.AfterFunc(50*time.Millisecond, func() { os.Exit(status) })
		return nil, nil
	}
	if w, ok := w.(commander); ok {
		return w.Do(words[0], words[1:])
	}
	return nil, fmt.Errorf("unknown command %q", words[0])
}

// ask is the other side: it prints the answer.
func ask(words []string) error {
	c, err := net.Dial("unix", socket())
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, strings.Join(words, " ")); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	var a answer
	if err := json.NewDecoder(c).Decode(&a); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		return err
	}
	if !a.OK {
		return errors.New(a.Error)
	}
	return nil
}
