package main

import (
	"context"
	"os"
)

// fromElsewhere restores a container, whose snapshot lies in the second host's store, from where else it may come: from the registry, with nothing of it here,
// while it is pulled and after that; and from the disk, where that is what the store is on. The registry has it in memory still, which on a machine
// of its own would not cost this one's disk anything.
func (b *bench) fromElsewhere(ctx context.Context, r *result, c *container, ref string) error {
	for _, way := range []struct {
		name  string
		flags []string
	}{{"registry", nil}, {"registry.first", []string{"--pull-first"}}} {
		c.remove(ctx, b.b)
		if err := b.b.Cryo(ctx, "rm", ref).Err(); err != nil {
			return err
		}
		said, _, err := b.returned(ctx, r, c, ref, "restored from the registry", way.flags...)
		if err != nil {
			return err
		}
		r.took(way.name+".restore", said.Running)
		r.took(way.name+".pull", said.Pull.Seconds)
	}
	if b.machine.Store == "tmpfs" {
		return nil
	}
	if err := forgetFiles(); err != nil {
		return err
	}
	c.remove(ctx, b.b)
	said, _, err := b.returned(ctx, r, c, ref, "restored from disk")
	if err != nil {
		return err
	}
	r.took("disk.restore", said.Seconds)
	return nil
}

// forgetFiles has the kernel forget what it keeps of files, programs included. Source: Documentation/admin-guide/sysctl/vm.rst, drop_caches.
func forgetFiles() error {
	if err := command(context.Background(), "sync").Err(); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1\n"), 0o644)
}
