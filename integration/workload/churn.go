package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/cryo-project/cryo/integration/twintest"
)

// churnerName is the hidden subcommand of the process that has the memory. It has one goroutine: what it forks off goes on in
// the middle of it, and without its other threads.
const churnerName = "churner"

// churn holds memory that it changes in all ways when it is asked to, beside a twin of it that is made then.
type churn struct {
	stdin  *os.File
	stdout *bufio.Reader
}

func startChurn(flags *flag.FlagSet, args []string) (workload, error) {
	slots := flags.Int("slots", 12, "ranges of memory, of 2.7 MiB each")
	seed := flags.Int("seed", 1, "of the content")
	under := flags.Bool("under", false, "have it under a process that has the same memory, but little in it, and is not restored lazily")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	name := churnerName
	if *under {
		name = sparseName
	}
	c := exec.Command("/proc/self/exe", name, strconv.Itoa(*slots), strconv.Itoa(*seed))
	c.Stderr, c.Stdout = os.Stderr, theirs
	in, command, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.Stdin = in
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start churner: %w", err)
	}
	w := churn{command, bufio.NewReader(ours)}
	if err := w.await("ready"); err != nil {
		return nil, err
	}
	return w, errors.Join(theirs.Close(), in.Close())
}

func (c churn) await(want string) error {
	line, err := c.stdout.ReadString('\n')
	if err == nil && strings.TrimSpace(line) != want {
		err = errors.New(strings.TrimSpace(line))
	}
	return err
}

func (c churn) Check() (map[string]any, error) { return nil, nil }

// Do knows "churn SEED", once.
func (c churn) Do(command string, args []string) (map[string]any, error) {
	if command != "churn" || len(args) != 1 {
		return nil, fmt.Errorf("unknown command %q", command)
	}
	if _, err := fmt.Fprintln(c.stdin, args[0]); err != nil {
		return nil, err
	}
	return nil, c.await("well")
}

// churner is the process; its arguments are the number of slots and the seed of their content.
func churner(args []string) error {
	debug.SetGCPercent(-1)
	var slots, seed int
	if _, err := fmt.Sscan(strings.Join(args, " "), &slots, &seed); err != nil {
		return err
	}
	if err := twintest.Map(twintest.Lazy, slots); err != nil {
		return err
	}
	twintest.Fill(twintest.Lazy, slots, uint64(seed))
	if _, err := fmt.Println("ready"); err != nil {
		return err
	}
	var buffer [64]byte
	n, err := syscall.Read(0, buffer[:])
	if err != nil {
		return err
	}
	way, err := strconv.Atoi(strings.TrimSpace(string(buffer[:n])))
	if err != nil {
		return err
	}
	if err := twintest.Map(twintest.Twin, slots); err != nil {
		return err
	}
	twintest.Fill(twintest.Twin, slots, uint64(seed))
	result := "well"
	if status := twintest.New(slots, uint64(way)).Run(150, 2); status != 0 {
		result = twintest.Explain(status)
	}
	_, err = fmt.Println(result)
	return err
}
