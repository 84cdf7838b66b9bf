package main

import (
	"context"
	"os"
)

// fromElsewhere restores a container, whose snapshot lies in the second host's store, from where else it may come: from the disk, where
// that is what the store is on, and from the registry, with nothing of it here.
func (b *bench) fromElsewhere(ctx context.Context, r *result, c *container, ref string) error {
	if b.machine.Store != "tmpfs" {
		if err := forgetFiles(); err != nil {
			return err
		}
		c.remove(ctx, b.b)
		said, _, err := b.returned(ctx, r, c, ref, "restored from disk")
		if err != nil {
			return err
		}
		r.took("disk.restore", said.Seconds)
	}
	c.remove(ctx, b.b)
	if err := b.b.Cryo(ctx, "rm", ref).Err(); err != nil {
		return err
	}
	said, _, err := b.returned(ctx, r, c, ref, "restored from the registry")
	if err != nil {
		return err
	}
	r.took("registry.restore", said.Running)
	return nil
}

// forgetFiles has the kernel forget what it keeps of files, programs included. Source: Documentation/admin-guide/sysctl/vm.rst, drop_caches.
func forgetFiles() error {
	if err := command(context.Background(), "sync").Err(); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("1\n"), 0o644)
}
