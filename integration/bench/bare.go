package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// bareDump has CRIU alone dump a container's process to a tmpfs and let it run on, as runc would have it do.
func (b *bench) bareDump(ctx context.Context, c *container) (elapsed, gap float64, err error) {
	pid, _, err := c.host.Task(ctx, c.id)
	if err != nil {
		return 0, 0, err
	}
	dir := filepath.Join(b.memory, "bare")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	if err := b.quiet(ctx, &c.process); err != nil {
		return 0, 0, err
	}
	root := filepath.Join("/run/containerd/io.containerd.runtime.v2.task/default", c.id, "rootfs")
	elapsed, err = b.criu(ctx, c.host, "dump", dir, "--tree", fmt.Sprint(pid), "--leave-running", "--root", root, "--external", "mnt[]:ms")
	if err != nil {
		return 0, 0, err
	}
	gap, err = c.gap(ctx)
	return elapsed, gap, err
}

// criu runs CRIU with images in a directory.
func (b *bench) criu(ctx context.Context, h *lab.Host, verb, dir string, flags ...string) (float64, error) {
	args := append([]string{b.lab.CRIU(), verb, "--images-dir", dir, "--log-file", verb + ".log", "--manage-cgroups=ignore"}, flags...)
	if lock := networkLock(); lock != "" {
		args = append(args, "--network-lock", lock)
	}
	elapsed, err := b.timed(ctx, h, args...)
	if err != nil {
		log := read(filepath.Join(dir, verb+".log"))
		err = fmt.Errorf("%w\n%s", err, log[max(0, len(log)-1500):])
	}
	return elapsed, err
}

// networkLock is what CRIU must be told to use where iptables, its default, is not installed; cryo does so by itself.
func networkLock() string {
	if _, err := exec.LookPath("iptables-restore"); err == nil {
		return ""
	}
	return "nftables"
}

// stockFlags are those of "ctr run" without which the stock shim's CRIU does not work on this machine.
func (b *bench) stockFlags() ([]string, error) {
	lock := networkLock()
	if lock == "" {
		return nil, nil
	}
	path := filepath.Join(b.lab.Dir, "criu.conf")
	return []string{"--annotation", "org.criu.config=" + path}, os.WriteFile(path, []byte("network-lock "+lock+"\n"), 0o600)
}
