package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// giveImages makes the images in dir readable to the container's root, for a container with a user namespace: CRIU opens
// images when it has become that user. Nobody else gains anything, since the directories above let only root pass.
func giveImages(dir string, spec *specs.Spec) error {
	if spec.Linux == nil || len(spec.Linux.UIDMappings) == 0 {
		return nil
	}
	uid, gid := hostID(spec.Linux.UIDMappings), hostID(spec.Linux.GIDMappings)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("give the images to the container's root: %w", err)
	}
	paths := []string{dir}
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	for _, path := range paths {
		if err := os.Lchown(path, uid, gid); err != nil {
			return fmt.Errorf("give the images to the container's root: %w", err)
		}
	}
	return nil
}

// hostID is who the container's 0 is on the host.
func hostID(mappings []specs.LinuxIDMapping) int {
	for _, m := range mappings {
		if m.ContainerID == 0 && m.Size > 0 {
			return int(m.HostID)
		}
	}
	return 0
}
