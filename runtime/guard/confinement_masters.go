package guard

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

// propagation tells for each key whether its path is in a mount that is shared or a slave. Paths that do not exist are left out.
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

// replace mounts images, given by file name, over those in the open directory, so that CRIU reads them instead.
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
