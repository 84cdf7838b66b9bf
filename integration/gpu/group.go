package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cryo-project/cryo/integration/lab"
)

// runGroup takes two containers in step, one on each host: ranks of torchrun whose DDP goes over Gloo, by TCP. The group is left running, and then ended and restored with the hosts exchanged,
// so that each rank has the other's address.
func runGroup(ctx context.Context, b *bench, r *result) error {
	if pull := b.b.Ctr(ctx, "images", "pull", "--plain-http", b.image); pull.Err() != nil {
		return pull.Err()
	}
	defer b.b.Ctr(context.WithoutCancel(ctx), "images", "delete", b.image)
	g := &pair{bench: b, hosts: []*lab.Host{b.a, b.b}}
	for i := range g.hosts {
		c := b.python(r.Case+"-"+strconv.Itoa(i), "rank_programs.py", "ddp", strconv.Itoa(i), strconv.Itoa(len(g.hosts)), b.a.Address).keeper()
		c.flags = append(c.flags, "--net-host", "--annotation", "io.cryo.io-uring=refuse", "--mount", sharedMemory)
		for _, setting := range []string{"GLOO_SOCKET_IFNAME=eth0", "UV_USE_IO_URING=0", "USE_LIBUV=0"} {
			c.flags = append(c.flags, "--env", setting)
		}
		g.members = append(g.members, c)
	}
	defer g.clear(ctx)
	if err := g.start(ctx); err != nil {
		return err
	}
	if err := g.check(ctx, r, "started"); err != nil {
		return err
	}
	ssh, err := g.ssh()
	if err != nil {
		return err
	}
	ref := b.registry.Reference("gpu/" + r.Case + ":group")
	if err := g.checkpoint(ctx, r, "live", ssh, ref, "--leave-running"); err != nil {
		return err
	}
	if err := g.check(ctx, r, "left running"); err != nil {
		return err
	}
	if err := g.checkpoint(ctx, r, "end", ssh, ref); err != nil {
		return err
	}
	for i, h := range g.hosts {
		g.members[i].remove(ctx, h)
	}
	slices.Reverse(g.hosts)
	args := []string{"restore", "--ssh", ssh, "--plain-http", "--json", "--allow", "all", ref}
	for i, h := range g.hosts {
		args = append(args, "--group", g.name(i)+"="+h.Name)
	}
	run := b.a.Cryo(ctx, args...)
	if run.Err() != nil {
		return run.Err()
	}
	r.took("restore.all", run.Elapsed.Seconds())
	return g.check(ctx, r, "restored, the hosts exchanged")
}

// pair is a group of two containers.
type pair struct {
	*bench
	members []*container
	hosts   []*lab.Host // of the members
}

func (g *pair) name(member int) string { return "rank" + strconv.Itoa(member) }

// start runs all members, and waits until they answer: none is ready before the other one is.
func (g *pair) start(ctx context.Context) error {
	for i, c := range g.members {
		if err := c.run(ctx, g.hosts[i]); err != nil {
			return err
		}
	}
	for i, c := range g.members {
		a, err := c.await(ctx, g.hosts[i], 0, 0)
		if err != nil {
			return fmt.Errorf("start %s: %w\n%s", c.id, err, end(c.log(g.hosts[i]), 3000))
		}
		c.lives = []string{a.Life}
	}
	return nil
}

// check makes sure that each member is what it was, and goes on.
func (g *pair) check(ctx context.Context, r *result, when string) error {
	for i, c := range g.members {
		if _, err := c.check(ctx, g.hosts[i], r, when+", "+g.name(i)); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint takes a snapshot of the group.
func (g *pair) checkpoint(ctx context.Context, r *result, prefix, ssh, ref string, flags ...string) error {
	args := slices.Concat([]string{"checkpoint", "--ssh", ssh, "--plain-http", "--json", ref}, flags)
	for i, c := range g.members {
		args = append(args, "--group", g.name(i)+"="+g.hosts[i].Name+"/"+c.id)
	}
	run := g.a.Cryo(ctx, args...)
	if run.Err() != nil {
		return run.Err()
	}
	var group struct {
		Members []struct{ Checkpoint taken }
	}
	if err := json.Unmarshal([]byte(run.Stdout), &group); err != nil {
		return fmt.Errorf("read what cryo checkpoint --group prints: %w", err)
	}
	for _, m := range group.Members {
		r.took(prefix+".freeze", m.Checkpoint.Freeze)
		r.took(prefix+".dump", m.Checkpoint.Dump)
	}
	r.took(prefix+".all", run.Elapsed.Seconds())
	return nil
}

// ssh writes a program that reaches the hosts as ssh does, and returns its path: the hosts of the lab need no server for it.
func (g *pair) ssh() (string, error) {
	text := "#!/bin/sh\nhost=$1\nshift\ncase $host in\n"
	for _, h := range g.hosts {
		text += fmt.Sprintf("%s) exec nsenter --target %d --mount --cgroup --net --uts --ipc env", h.Name, h.Pid())
		for _, v := range h.Env() {
			text += " '" + strings.ReplaceAll(v, "'", `'\''`) + "'"
		}
		text += ` "$@" ;;` + "\n"
	}
	path := filepath.Join(g.lab.Dir, "ssh")
	return path, os.WriteFile(path, []byte(text+"esac\nexit 255\n"), 0o755)
}

func (g *pair) clear(ctx context.Context) {
	for _, c := range g.members {
		g.bench.clear(ctx, c)
	}
}
