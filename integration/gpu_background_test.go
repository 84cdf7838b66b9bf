package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// background is a command that runs, and in which something can happen meanwhile.
type background struct {
	kill func()
	goOn func() // after untilHeld
	done chan struct{}
	// result is there when done is closed.
	result lab.Result
}

func inBackground(t *testing.T, h *lab.Host, args ...string) *background {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	b := &background{kill: cancel, goOn: func() {}, done: make(chan struct{})}
	c := h.Command(ctx, args[0], args[1:]...)
	go func() {
		defer close(b.done)
		b.result = lab.Finish(c)
	}()
	return b
}

// wait gives the result, and ends the test where there is none for too long.
func (b *background) wait(t *testing.T) lab.Result {
	t.Helper()
	select {
	case <-b.done:
		return b.result
	case <-time.After(2 * time.Minute):
		t.Fatal("the command hangs")
		return lab.Result{}
	}
}

// until waits for something to happen while the command runs, and ends the test if it does not.
func (b *background) until(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !happened(); time.Sleep(2 * time.Millisecond) {
		select {
		case <-b.done:
			t.Fatalf("%s: not before the end: %d %s%s", what, b.result.Code, b.result.Stdout, b.result.Stderr)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// victim kills one of those that take part: the command itself, or a process of the host's with a name.
func (b *background) victim(t *testing.T, h *lab.Host, who string) {
	t.Helper()
	if who == "client" {
		b.kill()
		return
	}
	is := called(commands[who])
	switch who {
	case "keeper":
		is = holding
	case "helper":
		is = serving
	}
	pid := find(t, h, is)
	if pid == 0 {
		t.Fatalf("there is no %s to kill", who)
	}
	kill(t, pid)
}

// holding tells whether a process is a keeper: the same program as the helper's, with another argument.
func holding(p process) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	return p.command == commands["helper"] && strings.HasSuffix(strings.TrimRight(string(line), "\x00"), "\x00keeper")
}

// serving tells whether a process is a helper of the shim's that is no keeper. The command has one of its own.
func serving(p process) bool {
	if p.command != commands["helper"] || holding(p) {
		return false
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	_, text, _ := strings.Cut(string(status), "\nPPid:\t")
	text, _, _ = strings.Cut(text, "\n")
	parent, err := os.ReadFile("/proc/" + text + "/comm")
	return err == nil && strings.TrimSpace(string(parent)) == commands["shim"]
}

// commands are those of processes that take part; the kernel keeps 15 characters.
var commands = map[string]string{"checkpoint": "cryo-checkpoint", "shim": "containerd-shim", "helper": "cryo-gpu-keeper", "criu": "criu"}

// running tells whether the host has a process with a command.
func running(t *testing.T, h *lab.Host, who string) func() bool {
	return func() bool {
		for _, p := range processes(t, h) {
			if p.command == commands[who] {
				return true
			}
		}
		return false
	}
}

// untilDumping waits until CRIU is at work for the checkpoint process.
func (b *background) untilDumping(t *testing.T, h *lab.Host) {
	t.Helper()
	b.until(t, "dump", func() bool {
		for _, p := range processes(t, h) {
			if dumping(h)(p) {
				return true
			}
		}
		return false
	})
}

// untilHeld has the command stand still during the dump, so that the shim holds the container for as long as the test wants. The
// command goes on with goOn.
func (b *background) untilHeld(t *testing.T, h *lab.Host) {
	t.Helper()
	b.untilDumping(t, h)
	pid := find(t, h, called("cryo"))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.until(t, "hold", func() bool {
		// Written after CRIU has ended, see package runtime/criu.
		found, _ := filepath.Glob(filepath.Join(h.CryoRoot(), "work/*/images/cryo.json")) // the pattern is well formed
		return len(found) > 0 && !running(t, h, "criu")()
	})
	b.goOn = func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
}

// helpers counts the helpers on a host.
func helpers(t *testing.T, h *lab.Host) (n int) {
	t.Helper()
	for _, p := range processes(t, h) {
		if p.command == commands["helper"] {
			n++
		}
	}
	return n
}

// isRestoring reports whether a process is the CRIU that works for runc, which speaks to it as swrk.
func isRestoring(p process) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	return p.command == "criu" && strings.Contains(string(line), "\x00swrk\x00")
}

// restoring returns a function that reports whether CRIU is at work for runc on a host. A restore of a small container is over in less than a tenth of a second: see [find].
func restoring(t *testing.T, h *lab.Host) func() bool {
	return func() bool { return slices.ContainsFunc(processes(t, h), isRestoring) }
}

// quietly takes warnings out of a result: the hosts' drivers are not of the same version.
func quietly(r lab.Result) lab.Result {
	var kept strings.Builder
	for line := range strings.Lines(r.Stderr) {
		if !strings.HasPrefix(line, "warning: ") {
			kept.WriteString(line)
		}
	}
	r.Stderr = kept.String()
	return r
}
