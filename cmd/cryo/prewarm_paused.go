package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// poolCommand returns a command that fills pools from the store s. The caller closes its client.
func (a *app) poolCommand(ctx context.Context, s *store.Store, ref string) (context.Context, restore.Command, error) {
	c, err := a.restoreCommand(s)
	if err != nil {
		return ctx, c, err
	}
	ctx, c.Client, err = a.connect(ctx)
	c.Ref, c.Namespace, c.Hooks = ref, a.namespace, a.hooks()
	return ctx, c, err
}

// keepPaused has so many containers of a snapshot stand still.
func (a *app) keepPaused(ctx context.Context, s *store.Store, ref string, count int) ([]restore.PoolState, error) {
	ctx, c, err := a.poolCommand(ctx, s, ref)
	if err != nil {
		return nil, err
	}
	defer closing(ctx, "containerd", c.Client)
	p, err := c.Keep(ctx, count)
	if err != nil || count == 0 {
		return nil, err
	}
	state, err := p.State()
	return []restore.PoolState{state}, err
}

// refill fills a pool again.
func (a *app) refill(ctx context.Context, ref string) error {
	s, err := a.store()
	if err != nil {
		return err
	}
	ctx, c, err := a.poolCommand(ctx, s, ref)
	if err != nil {
		return err
	}
	defer closing(ctx, "containerd", c.Client)
	return c.Refill(ctx)
}

// refilling starts a process that fills a pool again, and outlives this one. It has no terminal, and no signal that is meant for this one ends it.
func (a *app) refilling(root string) func(ref string) {
	return func(ref string) {
		args := []string{"prewarm", "--refill", ref, "--progress", progressNone, "--root", root, "--namespace", a.namespace, "--address", a.address}
		if a.configPath != "" {
			args = append(args, "--config", a.configPath)
		}
		self, err := os.Executable()
		if err == nil {
			c := exec.Command(self, args...)
			c.SysProcAttr = &unix.SysProcAttr{Setsid: true}
			if err = c.Start(); err == nil {
				_ = c.Process.Release() // init waits for it
			}
		}
		if err != nil {
			a.warn("the pool of %s is not filled again: %v", store.Familiar(ref), err)
		}
	}
}

// endPools ends pools whose snapshot was removed.
func (a *app) endPools(ctx context.Context, s *store.Store) error {
	return restore.EndPools(ctx, s, a.connectTo)
}

// connectTo reaches the containerd of a pool.
func (a *app) connectTo(ctx context.Context, address, namespace string) (context.Context, *containerd.Client, error) {
	return (&app{configPath: a.configPath, root: a.root, address: address, namespace: namespace}).connect(ctx)
}

// pausedCells returns how many containers of each pool stand ready.
func pausedCells(all []restore.PoolState) (cells []string) {
	for _, p := range all {
		cells = append(cells, fmt.Sprintf("%d of %d with %s", p.Ready, p.Wanted, config.Size(p.Memory)))
	}
	return cells
}
