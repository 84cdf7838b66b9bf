package restore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/shim/worker"
)

// giveImages makes the images in dir readable to the container's root, for a container with a user namespace: CRIU opens
// some images when it has become that user, and one (timens) while it is still root but has no capabilities over files of
// this host. So they stay root's, and are the group's too. No other user gains anything, since the directories above let
// only root pass.
func giveImages(dir string, spec *specs.Spec) error {
	if spec.Linux == nil || len(spec.Linux.UIDMappings) == 0 {
		return nil
	}
	gid := worker.HostID(spec.Linux.GIDMappings, 0)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("give the images to the container's root: %w", err)
	}
	give := func(path string, mode os.FileMode) error {
		if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, mode)); err != nil {
			return fmt.Errorf("give the images to the container's root: %w", err)
		}
		return nil
	}
	for _, e := range entries {
		if err := give(filepath.Join(dir, e.Name()), 0o640); err != nil {
			return err
		}
	}
	return give(dir, 0o750)
}
