package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"github.com/cryo-project/cryo/shim/restore"
)

// sweepEtcFiles removes the files of containers that are gone. Fresh ones may be of a container that is just being made.
func (a *app) sweepEtcFiles(ctx context.Context, client *containerd.Client, root string) error {
	const fresh = time.Hour
	dir := filepath.Dir(restore.EtcDir(root, a.address, a.namespace, "any"))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep files for /etc: %w", err)
	}
	containers, err := client.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("sweep files for /etc: %w", err)
	}
	there := map[string]bool{}
	for _, c := range containers {
		there[c.ID] = true
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || there[e.Name()] || time.Since(info.ModTime()) < fresh {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("sweep files for /etc: %w", err)
		}
	}
	return nil
}
