package confinement

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// propagation tells of paths, by their keys, whether the mount that each is in is shared or another's slave. It leaves out what is not there.
func propagation(paths map[string]string) (map[string]bool, error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("look at mounts: %w", err)
	}
	has := map[string]bool{}
	for key, path := range paths {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st)
		if errors.Is(err, unix.ENOENT) {
			continue // CRIU reports it
		}
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", path, err)
		}
		has[key] = slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool {
			return uint64(m.ID) == st.Mnt_id && (strings.Contains(m.Optional, "shared:") || strings.Contains(m.Optional, "master:"))
		})
	}
	return has, nil
}

// replace has CRIU find other images, given by their names, in the open directory.
func replace(dir int, images map[string][]byte) error {
	for name, image := range images {
		path := filepath.Join(scratch, name)
		if err := os.WriteFile(path, image, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(path, fmt.Sprintf("/proc/self/fd/%d/%s", dir, name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	return nil
}
