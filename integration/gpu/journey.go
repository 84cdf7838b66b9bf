package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// route says how a container gets to the second host. The zero value: by a checkpoint that ends it.
type route struct {
	live       bool     // before, take a checkpoint that leaves it running
	checkpoint []string // further flags of cryo checkpoint
	restore    []string // further flags of cryo restore
	elsewhere  bool     // in the end, restore it from wherever else the snapshot may come
	handed     int64    // bytes of device memory that the checkpoint must have handed over
}

// taken is what cryo checkpoint --json says.
type taken struct {
	Digest string  `json:"digest"`
	Size   int64   `json:"size"`
	Shared int64   `json:"shared"`
	Memory int64   `json:"memory"`
	Freeze float64 `json:"freeze"`
	Dump   float64 `json:"dump"`
	RootFS float64 `json:"rootfs"`
	Pack   float64 `json:"pack"`
	GPU    struct {
		Lock float64 `json:"lock"`
		Save float64 `json:"save"`
		Load float64 `json:"load"`
		// Devices is how long what was handed over was on its way, and Bytes how much that is.
		Devices float64 `json:"devices"`
		Bytes   int64   `json:"bytes"`
		// Precopy is how long device memory was copied while the container ran, and Same how many of Bytes had not changed since.
		Precopy float64 `json:"precopy"`
		Same    int64   `json:"same"`
	} `json:"gpu"`
}

// journey starts a container, takes snapshots of it, and restores the last one on the second host; at each stop it must be what it was.
func (b *bench) journey(ctx context.Context, r *result, c *container, o route) error {
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	if o.live {
		if _, err := b.leaveRunning(ctx, r, c, "live", o.checkpoint...); err != nil {
			return err
		}
	}
	return b.move(ctx, r, c, o)
}

// begin starts a container on the first host, and has it answer.
func (b *bench) begin(ctx context.Context, r *result, c *container) error {
	began := time.Now()
	if err := c.start(ctx); err != nil {
		return err
	}
	r.took("start", time.Since(began).Seconds())
	_, err := c.check(ctx, b.a, r, "started")
	return err
}

// leaveRunning takes a checkpoint that leaves the container running, and forgets it.
func (b *bench) leaveRunning(ctx context.Context, r *result, c *container, prefix string, flags ...string) (taken, error) {
	ref := b.registry.Reference("gpu/" + c.id + ":live")
	t, err := b.checkpoint(ctx, r, c, ref, prefix, append([]string{"--leave-running"}, flags...)...)
	if err != nil {
		return t, err
	}
	if _, err := c.check(ctx, b.a, r, "left running"); err != nil {
		return t, err
	}
	return t, b.a.Cryo(ctx, "rm", ref).Err()
}

// move takes a checkpoint that ends the container, and restores it on the second host by way of the registry.
func (b *bench) move(ctx context.Context, r *result, c *container, o route) error {
	ref := b.registry.Reference("gpu/" + c.id + ":end")
	t, err := b.checkpoint(ctx, r, c, ref, "end", o.checkpoint...)
	if err != nil {
		return err
	}
	if t.GPU.Bytes < o.handed {
		return fmt.Errorf("%d MiB were handed over, which should be %d at least", t.GPU.Bytes>>20, o.handed>>20)
	}
	r.Snapshot = map[string]int64{"memory": t.Memory, "size": t.Size}
	if err := b.carry(ctx, r, c, ref); err != nil {
		return err
	}
	said, all, err := b.returned(ctx, r, c, ref, "restored", o.restore...)
	if err != nil {
		return err
	}
	r.took("restore", said.Seconds)
	r.took("restore.all", all.Seconds())
	if o.elsewhere {
		return b.fromElsewhere(ctx, r, c, ref)
	}
	return nil
}

// checkpoint takes one and writes down its times.
func (b *bench) checkpoint(ctx context.Context, r *result, c *container, ref, prefix string, flags ...string) (t taken, err error) {
	run := b.a.Cryo(ctx, append([]string{"checkpoint", c.id, ref, "--json"}, flags...)...)
	if run.Err() != nil {
		return t, run.Err()
	}
	if err := json.Unmarshal([]byte(run.Stdout), &t); err != nil {
		return t, fmt.Errorf("read what cryo checkpoint prints: %w", err)
	}
	for _, time := range []struct {
		what    string
		seconds float64
	}{
		{"lock", t.GPU.Lock}, {"save", t.GPU.Save}, {"dump", t.Dump}, {"rootfs", t.RootFS}, {"load", t.GPU.Load},
		{"freeze", t.Freeze}, {"pack", t.Pack}, {"all", run.Elapsed.Seconds()},
	} {
		r.took(prefix+"."+time.what, time.seconds)
	}
	if t.GPU.Bytes > 0 {
		r.took(prefix+".devices", t.GPU.Devices)
	}
	if t.GPU.Precopy > 0 {
		r.took(prefix+".precopy", t.GPU.Precopy)
	}
	return t, nil
}

// carry brings a snapshot to the second host through the registry. Everything lies in memory, so what has been handed on is removed.
func (b *bench) carry(ctx context.Context, r *result, c *container, ref string) error {
	if _, status, err := b.a.Task(ctx, c.id); err != nil || status == "RUNNING" {
		return errors.Join(err, fmt.Errorf("after its checkpoint the container is %q", status))
	}
	c.remove(ctx, b.a)
	push := b.a.Cryo(ctx, "push", ref, "--plain-http")
	if push.Err() != nil {
		return push.Err()
	}
	r.took("push", push.Elapsed.Seconds())
	if inspect := b.a.Cryo(ctx, "inspect", ref); inspect.Code == 0 {
		text, _, _ := strings.Cut(inspect.Stdout, "\nLayers:") // there are many
		r.said("cryo inspect", text)
	}
	if err := b.a.Cryo(ctx, "rm", ref).Err(); err != nil {
		return err
	}
	pull := b.b.Cryo(ctx, "pull", ref, "--plain-http")
	if pull.Err() != nil {
		return pull.Err()
	}
	r.took("pull", pull.Elapsed.Seconds())
	return nil
}

// restore makes the container of the snapshot that is in the second host's store. The bind mounts of this machine's programs are
// granted, as what this is about is not what a snapshot may ask for.
func (b *bench) restore(ctx context.Context, r *result, c *container, ref string, flags ...string) error {
	restored, all, err := b.restored(ctx, r, c, ref, flags...)
	if err != nil {
		return err
	}
	r.took("restore", restored.Seconds)
	r.took("restore.all", all.Seconds())
	return nil
}

// restored is what cryo restore --json says.
type restored struct {
	Seconds      float64  `json:"seconds"`
	Running      float64  `json:"running"` // with what was fetched before
	GPUPrewarmed bool     `json:"gpuPrewarmed"`
	Pull         struct { // where something was pulled
		Seconds float64 `json:"seconds"`
	} `json:"pull"`
	Warnings []string `json:"warnings"`
}

// restored is restore, with the times for the caller.
func (b *bench) restored(ctx context.Context, r *result, c *container, ref string, flags ...string) (said restored, all time.Duration, err error) {
	args := append([]string{"restore", ref, "--plain-http", "--json", "--allow", "all", "--log-uri", "file://" + c.log(b.b)}, flags...)
	run := b.b.Cryo(ctx, args...)
	if run.Err() != nil {
		return said, 0, run.Err()
	}
	if err := json.Unmarshal([]byte(run.Stdout), &said); err != nil {
		return said, 0, fmt.Errorf("read what cryo restore prints: %w", err)
	}
	for _, w := range said.Warnings {
		r.said("warning of cryo restore", w)
	}
	return said, run.Elapsed, nil
}

// returned makes the container of the snapshot in the second host's store, and makes sure that it is what it was.
func (b *bench) returned(ctx context.Context, r *result, c *container, ref, when string, flags ...string) (said restored, all time.Duration, err error) {
	if said, all, err = b.restored(ctx, r, c, ref, flags...); err != nil {
		return said, all, fmt.Errorf("%s: %w", when, err)
	}
	if _, err := c.check(ctx, b.b, r, when); err != nil {
		return said, all, fmt.Errorf("%w\n%s", err, end(c.log(b.b), 3000))
	}
	return said, all, nil
}

// clear removes the container and its snapshots from both hosts.
func (b *bench) clear(ctx context.Context, c *container) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 45*time.Second)
	defer cancel()
	b.b.Cryo(ctx, "prewarm", "rm", "--all") // there may be none
	for _, h := range []*lab.Host{b.a, b.b} {
		c.remove(ctx, h)
		for _, tag := range []string{"live", "end"} {
			h.Cryo(ctx, "rm", b.registry.Reference("gpu/"+c.id+":"+tag)) // it may not be there
		}
	}
}

// refused makes sure that a checkpoint is refused with the words that are wanted, and that the container is none the worse.
func (b *bench) refused(ctx context.Context, r *result, c *container, want []string, flags ...string) error {
	ref := b.registry.Reference("gpu/" + c.id + ":live")
	run := b.a.Cryo(ctx, append([]string{"checkpoint", c.id, ref, "--leave-running"}, flags...)...)
	r.said("cryo checkpoint", run.Stderr)
	r.took("refused", run.Elapsed.Seconds())
	if run.Code == 0 {
		return fmt.Errorf("the checkpoint was not refused")
	}
	if _, err := c.check(ctx, b.a, r, "refused"); err != nil {
		return err
	}
	return says(run.Stderr, want...)
}
