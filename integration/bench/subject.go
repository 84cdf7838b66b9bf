package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The runtimes under test.
const (
	stockRuntime = "io.containerd.runc.v2"
	cryoRuntime  = "io.containerd.cryo.v1"
)

// subject is a kind of container: how much memory it has, and with what in it.
type subject struct {
	mib   int
	mixed bool
}

func (s subject) name() string {
	size := fmt.Sprintf("%d MiB", s.mib)
	if s.mib >= 1024 && s.mib%1024 == 0 {
		size = fmt.Sprintf("%d GiB", s.mib/1024)
	}
	if s.mixed {
		return size + ", 70 % zero, 15 % like code, 15 % random"
	}
	return size + ", random"
}

func (s subject) bytes() int64 { return int64(s.mib) << 20 }

// command runs the workload in a container or outside.
func (s subject) command(program string) []string {
	args := []string{program, "bench", "--quiet", "--memory", strconv.Itoa(s.mib)}
	if s.mixed {
		args = append(args, "--mixed")
	}
	return args
}

// process is a workload that answers on a socket.
type process struct {
	dir  string // where its socket is, which may not be there yet
	life string // "": not known yet
}

// container is one with a workload in it.
type container struct {
	process
	host *lab.Host
	id   string
}

// container runs a container, and waits until it has its memory.
func (b *bench) container(ctx context.Context, h *lab.Host, runtime string, s subject) (*container, error) {
	c := b.handle(h)
	args := []string{"run", "--detach", "--null-io", "--runtime", runtime}
	if runtime == stockRuntime {
		flags, err := b.stockFlags()
		if err != nil {
			return nil, err
		}
		args = append(args, flags...)
	}
	args = append(args, lab.ImageName, c.id)
	if err := h.Ctr(ctx, append(args, s.command("workload")...)...).Err(); err != nil {
		return nil, err
	}
	if _, err := c.await(ctx, time.Now()); err != nil {
		return nil, errors.Join(err, c.remove(ctx))
	}
	return c, nil
}

// handle is that of a container that does not exist yet.
func (b *bench) handle(h *lab.Host) *container {
	b.started++
	return b.handleOf(h, "b"+strconv.Itoa(b.started))
}

// handleOf is that of the container id.
func (b *bench) handleOf(h *lab.Host, id string) *container {
	c := &container{host: h, id: id}
	// The bundle's rootfs is there before the container's first process is.
	root := filepath.Join("/proc", strconv.Itoa(h.Pid()), "root/run/containerd/io.containerd.runtime.v2.task/default", id, "rootfs")
	c.dir = filepath.Join(root, filepath.Dir(lab.WorkloadSocket))
	return c
}

func (c *container) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	c.host.Ctr(ctx, "tasks", "delete", "--force", c.id) // it may have none any more
	return c.host.Ctr(ctx, "containers", "delete", c.id).Err()
}

// ask asks a process that runs.
func (p *process) ask(ctx context.Context, words ...string) (a lab.Answer, err error) {
	// A socket's path must be short: it goes through the directory's descriptor.
	d, err := os.Open(p.dir)
	if err != nil {
		return a, fmt.Errorf("ask: %w", err)
	}
	defer d.Close()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), filepath.Base(lab.WorkloadSocket)))
	if err != nil {
		return a, fmt.Errorf("ask: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintln(conn, strings.Join(words, " ")); err != nil {
		return a, fmt.Errorf("ask: %w", err)
	}
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return a, fmt.Errorf("read the answer: %w", err)
	}
	if !a.OK {
		return a, fmt.Errorf("%s: %s", strings.Join(words, " "), a.Error)
	}
	return a, nil
}

// answerTime bounds the wait for a process that is started or restored.
const answerTime = 5 * time.Minute

// await asks a thousand times a second until the process answers, and gives the time since then.
func (p *process) await(ctx context.Context, since time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for {
		a, err := p.ask(ctx, "check")
		took := time.Since(since)
		switch {
		case err == nil && p.life != "" && a.Life != p.life:
			return took, errors.New("a process that was started again answers, not the one that was restored")
		case err == nil:
			p.life = a.Life
			return took, nil
		case ctx.Err() != nil:
			return took, fmt.Errorf("no answer: %w (%w)", err, context.Cause(ctx))
		}
		time.Sleep(max(time.Millisecond, took/100)) // each question takes processor time from what is measured
	}
}

// gap is how long the process stood still at a time since it was asked last, by its own clock.
func (p *process) gap(ctx context.Context) (float64, error) {
	a, err := p.ask(ctx, "gap")
	if err != nil {
		return 0, err
	}
	gap, ok := a.State["gap"].(float64)
	if !ok {
		return 0, fmt.Errorf("no gap in %v", a.State)
	}
	return gap, nil
}
