package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// bareWay is that of CRIU alone: a process with the same memory outside of any container, dumped to files on the lab's disk. It has
// ended when this returns; the bubble is where it comes back.
func (b *bench) bareWay(ctx context.Context, u *bubble, s subject) *way {
	dir := filepath.Join(b.a.Dir, "bare")
	images := filepath.Join(dir, "images")
	w := &way{name: "criu restore, no container", files: []string{images}}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(images, 0o700)); err != nil {
		return w.fail(err)
	}
	if err := together(images, b.a.CryoRoot()); err != nil {
		w.cold.notRun = reason(err)
	}
	// What it has open must be the bubble's own, as CRIU in it sees it. CRIU takes whole sessions.
	number := filepath.Join(dir, "pid")
	words := append([]string{"sh", "-c", `echo $$ >"$0"; exec setsid "$@" </dev/null >/dev/null 2>&1`, number}, s.command(b.lab.Tool("workload"))...)
	c := u.command(context.WithoutCancel(ctx), words...)
	c.Env = append(c.Env, "WORKLOAD_SOCKET="+filepath.Join(dir, filepath.Base(lab.WorkloadSocket)))
	if err := c.Start(); err != nil {
		return w.fail(err)
	}
	p := &process{dir: dir}
	_, err := p.await(ctx, time.Now())
	if err == nil {
		_, err = b.criu(u.command(ctx, b.criuArgs("dump", images, "--tree", read(number))...), images)
	}
	err = errors.Join(err, u.clear())
	_ = c.Wait() // it was killed, by CRIU if all is well
	w.attempt = func() *attempt {
		restore := func(ctx context.Context) error {
			_, err := b.criu(u.command(ctx, b.criuArgs("restore", images, "--restore-detached")...), images)
			return err
		}
		return &attempt{process: &process{dir: dir, life: p.life}, command: restore, remove: func(context.Context) error { return u.clear() }, way: u.way}
	}
	return w.fail(err)
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
	args := b.criuArgs("dump", dir, "--tree", fmt.Sprint(pid), "--leave-running", "--root", root, "--external", "mnt[]:ms")
	elapsed, err = b.criu(c.host.Command(ctx, args[0], args[1:]...), dir)
	if elapsed -= b.way.Seconds(); err != nil {
		return 0, 0, err
	}
	gap, err = c.gap(ctx)
	return elapsed, gap, err
}

// criuArgs are a command of CRIU with images in a directory.
func (b *bench) criuArgs(verb, dir string, flags ...string) []string {
	args := append([]string{b.lab.CRIU(), verb, "--images-dir", dir, "--log-file", "criu.log", "--manage-cgroups=ignore"}, flags...)
	if lock := networkLock(); lock != "" && verb == "dump" {
		args = append(args, "--network-lock", lock)
	}
	return args
}

// criu runs one, and gives its seconds.
func (b *bench) criu(c *exec.Cmd, dir string) (float64, error) {
	r := lab.Finish(c)
	err := r.Err()
	if err != nil {
		log := read(filepath.Join(dir, "criu.log"))
		err = fmt.Errorf("%w\n%s", err, log[max(0, len(log)-1500):])
	}
	return r.Elapsed.Seconds(), err
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
