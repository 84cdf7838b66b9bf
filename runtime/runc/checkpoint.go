package runc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
)

// Dump says how a container is dumped.
type Dump struct {
	Images          string // directory the images go to; it exists
	Work            string // directory for CRIU's log; it exists
	Exit            bool   // CRIU ends the processes after the dump
	TCPEstablished  bool
	ExternalSockets bool
	Terminal        bool
	FileLocks       bool
	EmptyNamespaces []string
	Parent          string // images of an earlier dump, relative to Images
	CgroupsMode     string // soft, full, strict or ignore; empty is CRIU's own
	// Pages, unless nil, becomes descriptor [PagesDescriptor] of CRIU, whose configuration must say that pages go there.
	Pages *os.File
	// Patience is how long runc and CRIU may make no progress before they are ended; 0 is for ever. CRIU has a timeout of its own for stopping processes, which does not
	// count while it waits in the kernel.
	Patience time.Duration
}

// PagesDescriptor is that of [Dump.Pages]. runc hands on descriptors that it does not know, and uses number 3 itself.
const PagesDescriptor = 4

// errDump is the kind of a dump's error that has no other.
var errDump = errors.New("the dump has failed")

// dumpError returns the error of a dump that did not come about. reason is CRIU's or runc's own words, full whether no space was left. Its kind is ResourceExhausted where there was no space,
// FailedPrecondition where CRIU refused the container by a known rule, else it has none.
func dumpError(id, reason string, full bool) error {
	rule, hint := criu.Remedy(reason)
	kind, text := errDump, reason
	if rule != "" {
		kind, text = errdefs.ErrFailedPrecondition, rule+": "+reason
	}
	if full {
		kind = errdefs.ErrResourceExhausted
	}
	return failure.New(kind, hint, "dump %s: %s", id, text).By(rule)
}

// Checkpoint dumps the container. Cancelling ctx takes from CRIU the connection that pages go to, or gives it a moment to be done where there is none, and then ends it,
// whose death makes the kernel and CRIU's parasite let go of the processes. It returns the context's error once runc is gone, or nil if the dump is complete.
//
// After an error, runc and CRIU are gone, and of what they had done to the container only the cgroup may still be frozen: see [Container.Thaw]. Or the
// error is of the kind [ErrResidue].
func (c Container) Checkpoint(ctx context.Context, d Dump) error {
	s, err := c.state()
	if err != nil {
		return err
	}
	network, err := OpenNetwork(s.PID)
	if err != nil {
		return err
	}
	defer network.Close()
	if err = c.dump(ctx, d); err == nil {
		return nil
	}
	mending, cancel := context.WithTimeout(context.WithoutCancel(ctx), mendTime)
	defer cancel()
	if left := c.mend(mending, d, network); left != nil {
		return failure.New(ErrResidue, "", "the dump of %s failed (%w), and what it left could not be taken away: %w", c.ID, err, left)
	}
	return err
}

func (c Container) dump(ctx context.Context, d Dump) error {
	cmd, err := c.checkpointCommand(d)
	if err != nil {
		return err
	}
	work, err := filepath.EvalSymlinks(d.Work)
	if err != nil {
		return fmt.Errorf("find CRIU's work directory: %w", err)
	}
	group := group{work: work}
	cmd.Dir = work
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	exited, err := gorunc.Monitor.Start(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	ctx, end := c.watchDump(ctx, d, cmd.Process.Pid)
	defer end()
	running := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		hangUp(d, running)
		group.endUntil(running)
	})
	go group.endOrphans(cmd.Process.Pid, running)
	status, err := gorunc.Monitor.Wait(cmd, exited)
	stop()
	close(running)
	if ctx.Err() != nil && (err != nil || status != 0) {
		return fmt.Errorf("dump %s: %w", c.ID, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("wait for %s: %w", cmd.Path, err)
	}
	if status != 0 {
		log := filepath.Join(d.Work, dumpLog)
		reason := criu.Reason(log)
		if reason == "" {
			reason = lastError(c.Runtime.Log)
		}
		if reason == "" {
			reason = fmt.Sprintf("%s exited with status %d: %s", cmd.Path, status, strings.TrimSpace(output.String()))
		}
		return dumpError(c.ID, reason, criu.Full(log))
	}
	return nil
}

// dumpLog is CRIU's log of a dump, in its work directory.
const dumpLog = "dump.log"

// watchDump returns a context that ends when a dump makes no progress.
func (c Container) watchDump(ctx context.Context, d Dump, runc int) (context.Context, func()) {
	log := filepath.Join(d.Work, dumpLog)
	return Watch(ctx, d.Patience, func() string {
		var size int64
		if info, err := os.Stat(log); err == nil {
			size = info.Size()
		}
		return fmt.Sprint(size, Progress(runc))
	}, func() error {
		hint := "see whether a process of the container hangs in the kernel (state D in ps), or a disk; where the host is only slow, raise timeout under [dump] in /etc/cryo/config.toml"
		if err := c.Dumpable(ctx); err != nil {
			hint = failure.Hint(err)
		}
		return failure.New(context.DeadlineExceeded, hint, "dump-stalled: CRIU has made no progress for %s, and was ended; the last line of its log is %q", d.Patience, LastLine(log)).By("dump-stalled")
	})
}

// LastLine returns the last line of a file, or the end of it; empty if there is none.
func LastLine(path string) string {
	const most = 200
	data, _ := os.ReadFile(path)
	data = bytes.TrimSpace(data)
	data = data[bytes.LastIndexByte(data, '\n')+1:]
	return string(data[max(0, len(data)-most):])
}

// graceTime is how long CRIU may take to give up a dump by itself, or to be done with it.
var graceTime = 3 * time.Second

// hangUp makes CRIU fail where it sends pages, and waits until done, though not for long. There CRIU's code is at rest in all
// processes, which is not so at any moment: a CRIU that is killed while its code enters or leaves a process leaves that to crash. A CRIU that writes files has nothing
// to be taken away: a small dump is done by then, and a large one is at its pages. One that would end the processes when it is done is not waited for:
// its images are not wanted any more.
func hangUp(d Dump, done <-chan struct{}) {
	switch {
	case d.Pages != nil:
		_ = unix.Shutdown(int(d.Pages.Fd()), unix.SHUT_RDWR) // it may be closed already
	case d.Exit:
		return
	}
	select {
	case <-done:
	case <-time.After(graceTime):
	}
}

// checkpointCommand is made here rather than by go-runc, whose cancelling kills runc and leaves CRIU at work.
func (c Container) checkpointCommand(d Dump) (*exec.Cmd, error) {
	name := c.Runtime.Command
	if name == "" {
		name = gorunc.DefaultCommand
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("find the container runtime: %w", err)
	}
	args := []string{"--root", c.Runtime.Root, "--log", c.Runtime.Log, "--log-format", "json"}
	if c.Runtime.SystemdCgroup {
		args = append(args, "--systemd-cgroup")
	}
	args = append(args, "checkpoint", "--image-path", d.Images, "--work-path", d.Work)
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"--leave-running", !d.Exit},
		{"--tcp-established", d.TCPEstablished},
		{"--ext-unix-sk", d.ExternalSockets},
		{"--shell-job", d.Terminal},
		{"--file-locks", d.FileLocks},
	} {
		if flag.set {
			args = append(args, flag.name)
		}
	}
	if d.Parent != "" {
		args = append(args, "--parent-path", d.Parent)
	}
	if d.CgroupsMode != "" {
		args = append(args, "--manage-cgroups-mode", d.CgroupsMode)
	}
	for _, ns := range d.EmptyNamespaces {
		args = append(args, "--empty-ns", ns)
	}
	cmd := exec.Command(path, append(args, c.ID)...)
	if d.Pages != nil {
		cmd.ExtraFiles = append(make([]*os.File, PagesDescriptor-3), d.Pages)
	}
	for _, v := range os.Environ() {
		// runc would wait for systemd's answer.
		if !strings.HasPrefix(v, "NOTIFY_SOCKET=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd, nil
}
