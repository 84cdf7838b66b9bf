package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// terminal answers each line of standard input with "echo: " and the line, and knows its window.
type terminal struct {
	lines atomic.Int64
	ended atomic.Bool // end of standard input was seen
}

func startTerminal(flags *flag.FlagSet, args []string) (workload, error) {
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	t := &terminal{}
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			t.lines.Add(1)
			fmt.Println("echo:", in.Text())
		}
		t.ended.Store(true)
	}()
	return t, nil
}

// Check says whether the standard descriptors are a terminal, of what size, and whether it is the controlling one.
func (t *terminal) Check() (map[string]any, error) {
	state := map[string]any{"lines": t.lines.Load(), "ended": t.ended.Load()}
	size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
	state["terminal"] = err == nil
	if err != nil {
		return state, nil
	}
	state["rows"], state["columns"] = size.Row, size.Col
	for fd := range 3 {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
			return state, fmt.Errorf("descriptor %d is no terminal: %w", fd, err)
		}
	}
	controlling, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return state, fmt.Errorf("no controlling terminal: %w", err)
	}
	return state, controlling.Close()
}
