package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/twintest"
)

// sparseName is the hidden subcommand of a churner's parent, which has memory at the same addresses and has written to little of it. It stands
// where CRIU takes all its memory for stacks, and restores it at once, while the churner's is lazy.
const sparseName = "sparse"

// sparseParent is the process; its arguments are those of the churner.
func sparseParent(args []string) error {
	debug.SetGCPercent(-1) // a thread that stands there does not stop for it
	var slots int
	if _, err := fmt.Sscan(args[0], &slots); err != nil {
		return err
	}
	if err := twintest.Map(twintest.Lazy, slots); err != nil {
		return err
	}
	twintest.Sprinkle(twintest.Lazy, slots)
	c := exec.Command("/proc/self/exe", append([]string{churnerName}, args...)...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return fmt.Errorf("start churner: %w", err)
	}
	var never [2]int
	if err := unix.Pipe2(never[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	readAligned(never[0])
	return errors.New("a pipe that nobody writes to has been read")
}
