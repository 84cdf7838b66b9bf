package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/cryo-project/cryo/integration/lab"
)

// way is a way to bring a process back, and where its files are.
type way struct {
	name    string
	files   []string // directories; the page cache is cleared of what is in them for cold rounds
	prepare func() error
	attempt func() *attempt

	warm, cold times
}

// attempt is one restore: the process it shall bring back, the command that does it, and what removes it.
type attempt struct {
	process *process
	command func(context.Context) error
	remove  func(context.Context) error
	way     float64 // seconds that the command takes to get where it works
}

// times are of a way's rounds, seconds.
type times struct {
	first  []float64 // until it answers
	filled []float64 // until all its memory is there
	notRun string
}

// cryoWays are those by cryo, of a snapshot in the local store and in the registry.
func (b *bench) cryoWays(ctx context.Context, s subject) (local, remote *way, err error) {
	c, err := b.container(ctx, b.a, cryoRuntime, s)
	if err != nil {
		return nil, nil, err
	}
	ref := b.registry.Reference("bench/restore:" + c.id)
	if _, _, err := b.checkpoint(ctx, c, ref); err != nil {
		return nil, nil, errors.Join(err, c.remove(ctx))
	}
	if err := c.remove(ctx); err != nil {
		return nil, nil, err
	}
	if err := b.a.Cryo(ctx, "push", "--plain-http", ref).Err(); err != nil {
		return nil, nil, err
	}
	from := func(name string, h *lab.Host, flags ...string) *way {
		return &way{name: name, attempt: func() *attempt { return b.cryoAttempt(h, c.life, ref, flags...) }}
	}
	local = from("cryo restore, local", b.a, "--pull", "never")
	local.files = []string{b.a.CryoRoot()}
	// What is still pulled when the next round begins would be found by it.
	remote = from("cryo restore, registry", b.b, "--plain-http", "--wait")
	remote.files = []string{filepath.Join(b.registry.Dir, "data")}
	remote.prepare = func() error { return errors.Join(empty(ctx, b.b), b.settle()) }
	return local, remote, nil
}

func (b *bench) cryoAttempt(h *lab.Host, life, ref string, flags ...string) *attempt {
	c := b.handle(h)
	c.life = life
	args := append([]string{"restore", ref, "--name", c.id}, flags...)
	command := func(ctx context.Context) error { return h.Cryo(ctx, args...).Err() }
	return &attempt{process: &c.process, command: command, remove: c.remove, way: b.way.Seconds()}
}

// fail makes a way one that is not tried.
func (w *way) fail(err error) *way {
	if err != nil {
		w.warm.notRun, w.cold.notRun = reason(err), reason(err)
	}
	return w
}

// stockWays are ctr's, of a checkpoint in containerd, and of the same in the registry, from where it is pulled with the clock running.
func (b *bench) stockWays(ctx context.Context, s subject) (local, remote *way) {
	local = &way{name: "ctr c restore --live --rw", files: []string{filepath.Join(b.a.Dir, "containerd")}}
	remote = &way{name: "ctr images pull from the same registry, then ctr c restore --live --rw", files: []string{filepath.Join(b.registry.Dir, "data")}}
	remote.prepare = func() error { return errors.Join(empty(ctx, b.b), b.settle()) }
	c, err := b.container(ctx, b.a, stockRuntime, s)
	if err != nil {
		return local.fail(err), remote.fail(err)
	}
	ref := b.registry.Reference("bench/stock:" + c.id)
	err = b.a.Ctr(ctx, "containers", "checkpoint", "--task", "--rw", "--image", c.id, ref).Err()
	if err := errors.Join(err, c.remove(ctx)); err != nil {
		return local.fail(err), remote.fail(err)
	}
	remote.fail(b.a.Ctr(ctx, "images", "push", "--plain-http", ref).Err())
	local.attempt = func() *attempt { return b.stockAttempt(b.a, c.life, ref) }
	remote.attempt = func() *attempt {
		a := b.stockAttempt(b.b, c.life, ref)
		restore := a.command
		a.command = func(ctx context.Context) error {
			if err := b.b.Ctr(ctx, "images", "pull", "--plain-http", ref).Err(); err != nil {
				return err
			}
			return restore(ctx)
		}
		a.way *= 2 // two commands
		return a
	}
	return local, remote
}

func (b *bench) stockAttempt(h *lab.Host, life, ref string) *attempt {
	c := b.handle(h)
	c.life = life
	command := func(ctx context.Context) error {
		return h.Ctr(ctx, "containers", "restore", "--live", "--rw", c.id, ref).Err()
	}
	remove := func(ctx context.Context) error { return errors.Join(c.remove(ctx), removeUnpacked(h)) }
	return &attempt{process: &c.process, command: command, remove: remove, way: b.way.Seconds()}
}

// removeUnpacked removes what containerd unpacks for a restore and leaves to nobody, as large as the process is.
func removeUnpacked(h *lab.Host) error {
	dirs, err := filepath.Glob(filepath.Join(h.Dir, "xdg", "ctrd-checkpoint*"))
	for _, dir := range dirs {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}
