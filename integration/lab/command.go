package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Result is how a command ended.
type Result struct {
	Command string
	Stdout  string
	Stderr  string
	Code    int // exit status; 128 plus the signal's number where one ended it; -1 where it could not be started
	Elapsed time.Duration
}

// Err is nil where the command exited with 0.
func (r Result) Err() error {
	if r.Code == 0 {
		return nil
	}
	return fmt.Errorf("%s: exit status %d: %s%s", r.Command, r.Code, r.Stderr, r.Stdout)
}

// enter makes a process a member of the cgroups listed in its first argument, so that nothing outlives host and lab,
// and turns it into the program that follows.
const enter = `while read -r procs; do echo $$ >"$procs" || exit 125; done <"$1"; shift; exec "$@"`

// Command prepares a program to run on the host: in its namespaces, with its environment, in directory /. The process
// becomes the program itself, so that signals reach it.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	// Where cgroup v2 is mounted with nsdelegate, no process of outside can be made a member from inside of the namespace.
	all := append([]string{"-c", enter, "sh", h.memberships(), "nsenter", "--target", strconv.Itoa(h.Pid()), "--mount", "--cgroup", "--net", "--uts", "--ipc", "--", name}, args...)
	c := exec.CommandContext(ctx, "sh", all...)
	c.Dir = "/"
	c.Env = h.Env()
	c.WaitDelay = 5 * time.Second
	return c
}

// Env is the environment of the host's programs.
func (h *Host) Env() []string {
	path := append([]string{}, h.options.Path...)
	path = append(path, h.lab.options.Bin, filepath.Join(h.lab.options.Bin, "tools"))
	if !h.options.NoCRIU {
		path = append(path, h.lab.criu)
	}
	path = append(path, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	return slices.Concat([]string{
		"PATH=" + strings.Join(path, ":"),
		"HOME=" + filepath.Join(h.Dir, "home"),
		"DOCKER_CONFIG=" + filepath.Join(h.Dir, "home/.docker"),
		"TMPDIR=" + filepath.Join(h.Dir, "tmp"),
		"XDG_RUNTIME_DIR=" + filepath.Join(h.Dir, "xdg"),
		"CRYO_ROOT=" + h.CryoRoot(),
		"CRYO_CONFIG=" + filepath.Join(h.Dir, "cryo.toml"),
		"CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1", // so that ctr prints nothing else on standard error
		"LANG=C.UTF-8",
		"TERM=dumb",
	}, h.gpuEnv(), h.options.Env)
}

// Run runs a program on the host to its end, which comes after ten minutes at the latest.
func (h *Host) Run(ctx context.Context, args ...string) Result {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return Finish(h.Command(ctx, args[0], args[1:]...))
}

// Ctr runs ctr on the host.
func (h *Host) Ctr(ctx context.Context, args ...string) Result {
	return h.Run(ctx, append([]string{"ctr"}, args...)...)
}

// Cryo runs cryo on the host.
func (h *Host) Cryo(ctx context.Context, args ...string) Result {
	return h.Run(ctx, append([]string{"cryo"}, args...)...)
}

// Finish runs a prepared command and collects what it prints, in addition to what the caller set up.
func Finish(c *exec.Cmd) Result { return Follow(c, func() {}) }

// Signalled does the same and sends the command a signal when it has run for so long.
func Signalled(c *exec.Cmd, after time.Duration, sig syscall.Signal) Result {
	var timer *time.Timer
	r := Follow(c, func() {
		timer = time.AfterFunc(after, func() { _ = c.Process.Signal(sig) }) // it may have ended
	})
	if timer != nil {
		timer.Stop()
	}
	return r
}

// Follow does what [Finish] does, and calls started when the command runs.
func Follow(c *exec.Cmd, started func()) Result {
	var stdout, stderr bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &stdout
	}
	if c.Stderr == nil {
		c.Stderr = &stderr
	}
	begin := time.Now()
	err := c.Start()
	if err == nil {
		started()
		err = c.Wait()
	}
	r := Result{Command: describe(c.Args), Stdout: stdout.String(), Stderr: stderr.String(), Elapsed: time.Since(begin)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		r.Code = exit.ExitCode()
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok {
			r.Code = 128 + int(status.Signal())
		}
		r.Stderr += exit.String()
	case err != nil && c.ProcessState != nil && c.ProcessState.Success():
		// A grandchild kept the pipes open after the end (WaitDelay): the command itself is done.
	case err != nil:
		r.Code = -1
		r.Stderr += err.Error()
	}
	return r
}

// describe is a command line without the way into the host.
func describe(args []string) string {
	if slices.Contains(args, enter) {
		if i := slices.Index(args, "--"); i >= 0 {
			args = args[i+1:]
		}
	}
	return strings.Join(args, " ")
}
