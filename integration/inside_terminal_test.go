package integration

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestInsideTerminal has a program at a terminal, started by "ctr run -t". On the other host somebody attaches, types,
// reads, and changes the window's size.
func TestInsideTerminal(t *testing.T) {
	a, b := pair(t)
	j := journey{id: name(t)}
	cleanup(t, a, j.id)
	first := typist(t, a.Command(t.Context(), "ctr", "run", "--tty", "--runtime", cryoRuntime, shared.image, j.id, "workload", "terminal", "--quiet"))
	await(t, a, j.id)
	first.says(t, "one\n", "echo: one\r")
	first.resize(t, 100, 30, func() map[string]any { return await(t, a, j.id).State })
	before, after := move(t, j)
	for key, value := range before.State {
		if after.State[key] != value {
			t.Errorf("%s was %v and is %v", key, value, after.State[key])
		}
	}
	second := typist(t, b.Command(t.Context(), "ctr", "tasks", "attach", j.id))
	second.says(t, "two\n", "echo: two\r")
	second.resize(t, 120, 50, func() map[string]any { return await(t, b, j.id).State })
	second.says(t, "three\n", "echo: three\r")
	if lines := await(t, b, j.id).State["lines"]; lines != 3.0 {
		t.Errorf("the program has read %v lines, not 3", lines)
	}
}

// keyboard is the side of a pseudo-terminal where somebody sits.
type keyboard struct {
	pty *os.File
	out buffer
}

// typist starts a command at a new terminal, and ends it when the test ends.
func typist(t *testing.T, c *exec.Cmd) *keyboard {
	t.Helper()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	k := &keyboard{pty: pty}
	read := make(chan struct{})
	go func() {
		defer close(read)
		bytes := make([]byte, 4096)
		for {
			n, err := pty.Read(bytes)
			_, _ = k.out.Write(bytes[:n])
			if err != nil { // EIO: nobody has the other side any more
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = tty.Close()
		<-read
		_ = pty.Close()
	})
	return k
}

// says types, and waits for what comes back.
func (k *keyboard) says(t *testing.T, line, answer string) {
	t.Helper()
	if _, err := k.pty.WriteString(line); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("the terminal says %q", k.out.String())
		}
	}()
	eventually(t, fmt.Sprintf("answer to %q", line), 30*time.Second, func() bool { return strings.Contains(k.out.String(), answer) })
}

// resize changes the window's size until the program has seen it: ctr misses a change before it listens for the signal,
// and the kernel sends none where nothing changes.
func (k *keyboard) resize(t *testing.T, columns, rows uint16, state func() map[string]any) {
	t.Helper()
	eventually(t, "window's size", 30*time.Second, func() bool {
		for _, size := range []unix.Winsize{{Col: columns, Row: rows - 1}, {Col: columns, Row: rows}} {
			if err := unix.IoctlSetWinsize(int(k.pty.Fd()), unix.TIOCSWINSZ, &size); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(300 * time.Millisecond)
		seen := state()
		return seen["columns"] == float64(columns) && seen["rows"] == float64(rows)
	})
}
