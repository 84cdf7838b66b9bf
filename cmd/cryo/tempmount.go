package main

import (
	"fmt"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
)

// mountIn has this process mount a rootfs, where it must, below a working directory. What a killed process leaves
// mounted is unmounted with it by the next one.
func mountIn(work string) error {
	if err := mount.SetTempMountLocation(filepath.Join(work, "mounts")); err != nil {
		return fmt.Errorf("make a place for mounts: %w", err)
	}
	return nil
}
