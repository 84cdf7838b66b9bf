package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// bareWay is that of CRIU alone: a process with the same memory outside of any container, dumped to files on the lab's disk.
func (b *bench) bareWay(ctx context.Context, s subject) *way {
	dir := filepath.Join(b.a.Dir, "bare")
	images := filepath.Join(dir, "images")
	w := &way{name: "criu restore, no container", files: []string{images}}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(images, 0o700)); err != nil {
		return w.fail(err)
	}
	// What it has open must be the host's own, as the host's CRIU sees it.
	words := append([]string{"-c", `exec "$@" </dev/null >/dev/null 2>&1`, "sh"}, s.command(b.lab.Tool("workload"))...)
	c := b.a.Command(context.WithoutCancel(ctx), "sh", words...)
	c.Env = append(c.Env, "WORKLOAD_SOCKET="+filepath.Join(dir, filepath.Base(lab.WorkloadSocket)))
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // CRIU takes whole sessions
	if err := c.Start(); err != nil {
		return w.fail(err)
	}
	p := &process{dir: dir}
	_, err := p.await(ctx, time.Now())
	if err == nil {
		_, err = b.criu(ctx, b.a, "dump", images, "--tree", fmt.Sprint(c.Process.Pid))
	}
	if err != nil {
		err = errors.Join(err, c.Process.Kill())
	}
	_ = c.Wait() // it was killed, by CRIU if all is well; restored, it gets its number again
	w.attempt = func() *attempt {
		restore := func(ctx context.Context) error {
			_, err := b.criu(ctx, b.a, "restore", images, "--restore-detached")
			return err
		}
		return &attempt{&process{dir: dir, life: p.life}, restore, func(context.Context) error { return end(b.a, c.Process.Pid) }}
	}
	return w.fail(err)
}

// end kills a restored process, which is not our child any more, and waits until its number is free. Where the restore has failed, the
// number may be that of somebody else's.
func end(h *lab.Host, pid int) error {
	deadline := time.Now().Add(time.Minute)
	for slices.Contains(h.Processes(), pid) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return os.NewSyscallError("kill", err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not end", pid)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}
