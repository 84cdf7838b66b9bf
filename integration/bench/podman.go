package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// podman runs containers on the first host by podman. Podman's files are below the lab's directory.
type podman struct {
	*bench
	dir   string
	image string
}

// podmanCheckpoint and podmanRestore are the commands of podman that are measured, as the report names them.
const (
	podmanCheckpoint = "podman container checkpoint --export"
	podmanRestore    = "podman container restore --import"
)

// errNoPodman is why podman is not measured where it is not installed, as on machines without Debian's packages.
var errNoPodman = errors.New("podman is not installed")

// newPodman loads the lab's image into podman.
func (b *bench) newPodman(ctx context.Context) (*podman, error) {
	if _, err := exec.LookPath("podman"); err != nil {
		return nil, errNoPodman
	}
	p := &podman{bench: b, dir: filepath.Join(b.a.Dir, "podman")}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	r := p.run(ctx, "load", "--quiet", "--input", b.lab.Image().Path)
	if err := r.Err(); err != nil {
		return nil, err
	}
	_, image, ok := strings.Cut(strings.TrimSpace(r.Stdout), ": ")
	if !ok {
		return nil, fmt.Errorf("podman load prints %q", r.Stdout)
	}
	p.image = image
	return p, nil
}

// run runs a command of podman. podman uses the same CRIU and runc as cryo and ctr in this benchmark.
func (p *podman) run(ctx context.Context, args ...string) lab.Result {
	return p.a.Run(ctx, append([]string{"env", "-u", "DOCKER_CONFIG", "podman", "--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--tmpdir", filepath.Join(p.dir, "tmp"),
		"--runtime", p.lab.Tool("runc"), "--cgroup-manager", "cgroupfs", "--events-backend", "none"}, args...)...)
}

// podmanContainer is one whose socket is in a directory of the host, so that it is found as soon as the process is there.
type podmanContainer struct {
	process
	podman *podman
	id     string
}

func (p *podman) handle() *podmanContainer {
	c := &podmanContainer{podman: p, id: p.bench.handle(p.a).id}
	c.dir = filepath.Join(p.dir, "sockets-"+c.id)
	return c
}

// container runs one, and waits until it has its memory.
func (p *podman) container(ctx context.Context, s subject) (*podmanContainer, error) {
	c := p.handle()
	flags, err := p.stockFlags()
	if err := errors.Join(err, os.Mkdir(c.dir, 0o700)); err != nil {
		return nil, err
	}
	args := append([]string{"run", "--detach", "--pull", "never", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", "--cgroups", "no-conmon", "--network", "none", "--name", c.id, "--volume", c.dir + ":" + filepath.Dir(lab.WorkloadSocket)}, flags...)
	if err := p.run(ctx, append(append(args, p.image), s.command("workload")...)...).Err(); err != nil {
		return nil, err
	}
	if _, err := c.await(ctx, time.Now()); err != nil {
		return nil, errors.Join(err, c.remove(ctx))
	}
	return c, nil
}

func (c *podmanContainer) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return c.podman.run(ctx, "rm", "--force", "--time", "0", c.id).Err()
}

// exported is where a container's checkpoint is.
func (c *podmanContainer) exported() string { return filepath.Join(c.podman.dir, c.id+".tar") }

// checkpoint writes one to a file. podman's own compression (zstd) is left on, as most have it.
func (c *podmanContainer) checkpoint(ctx context.Context, flags ...string) error {
	return c.podman.run(ctx, append([]string{"container", "checkpoint", "--export", c.exported(), c.id}, flags...)...).Err()
}

// pause is how long a container stands still for a checkpoint, as its process sees it.
func (p *podman) pause(ctx context.Context, s subject) (gap float64, err error) {
	c, err := p.container(ctx, s)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.remove(ctx), os.Remove(c.exported())) }()
	if err := p.quiet(ctx, &c.process); err != nil {
		return 0, err
	}
	if err := c.checkpoint(ctx, "--leave-running"); err != nil {
		return 0, err
	}
	return c.gap(ctx)
}

// podmanWay is the way of podman: a checkpoint in a file, which podman imports. The restored container has the name and the socket's directory of the first one.
func (b *bench) podmanWay(ctx context.Context, s subject) *way {
	w := &way{name: podmanRestore}
	p, err := b.newPodman(ctx)
	if err != nil {
		return w.fail(err)
	}
	c, err := p.container(ctx, s)
	if err != nil {
		return w.fail(err)
	}
	err = c.checkpoint(ctx)
	if err := errors.Join(err, c.remove(ctx)); err != nil {
		return w.fail(err)
	}
	w.files = []string{filepath.Dir(c.exported())}
	w.attempt = func() *attempt {
		restore := func(ctx context.Context) error {
			return p.run(ctx, "container", "restore", "--import", c.exported()).Err()
		}
		return &attempt{process: &process{dir: c.dir, life: c.life}, command: restore, remove: c.remove, way: p.bench.way.Seconds()}
	}
	return w
}
