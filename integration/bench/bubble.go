package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// bubble is a place on a host where process ids are its own: a process that CRIU restores has the number that it had, which
// on the machine somebody else may have by then.
type bubble struct {
	host *lab.Host
	unit *exec.Cmd // unshare, whose only child is the init
	init int       // its id outside
	way  float64   // seconds to get into it
}

// initVariable makes of this program the init of a bubble.
const initVariable = "CRYO_BENCH_INIT"

// reap does what an init must, if the variable says so.
func reap() {
	if os.Getenv(initVariable) == "" {
		return
	}
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func newBubble(ctx context.Context, h *lab.Host) (*bubble, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &bubble{host: h}
	b.unit = h.Command(context.WithoutCancel(ctx), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", self)
	b.unit.Env = append(b.unit.Env, initVariable+"=1")
	if err := b.unit.Start(); err != nil {
		return nil, err
	}
	children := fmt.Sprintf("/proc/%d/task/%d/children", b.unit.Process.Pid, b.unit.Process.Pid)
	deadline := time.Now().Add(30 * time.Second)
	for {
		// It is the init once it is this program, which it becomes with its /proc mounted.
		b.init, _ = strconv.Atoi(read(children))
		program, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(b.init), "exe"))
		if b.init > 0 && program == self {
			break
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(errors.New("start a bubble: it has no init"), b.close())
		}
		time.Sleep(5 * time.Millisecond)
	}
	var ways []float64
	for range 5 {
		ways = append(ways, lab.Finish(b.command(ctx, "true")).Elapsed.Seconds())
	}
	middle, _ := spreadOf(ways)
	b.way = middle.median
	return b, nil
}

// command prepares a program to run in the bubble.
func (b *bubble) command(ctx context.Context, args ...string) *exec.Cmd {
	return b.host.Command(ctx, "nsenter", append([]string{"--target", strconv.Itoa(b.init), "--pid", "--mount", "--"}, args...)...)
}

// clear ends everything in the bubble but its init, and waits for that.
func (b *bubble) clear() error {
	inside, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(b.init), "ns/pid"))
	if err != nil {
		return fmt.Errorf("clear the bubble: %w", err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		left := 0
		for _, pid := range b.host.Processes() {
			namespace, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns/pid"))
			if err != nil || namespace != inside || pid == b.init {
				continue
			}
			left++
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return os.NewSyscallError("kill", err)
			}
		}
		// Those that are dead but not reaped have no namespace any more, but are children of the init still.
		waiting := strings.Fields(read(fmt.Sprintf("/proc/%d/task/%d/children", b.init, b.init)))
		if left == 0 && len(waiting) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("clear the bubble: %d processes do not end", max(left, len(waiting)))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// close ends all of it.
func (b *bubble) close() error {
	err := b.unit.Process.Kill() // the init goes with it, and all others with that
	_ = b.unit.Wait()
	deadline := time.Now().Add(time.Minute)
	for b.init > 0 && slices.Contains(b.host.Processes(), b.init) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	return err
}
