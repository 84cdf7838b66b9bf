package criu

import (
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"golang.org/x/sys/unix"
)

// FollowNone changes the images in dir so that CRIU follows no symlinks in bind mounts of the host's files. Others may have these files too, and could replace a reviewed file by a symlink while
// CRIU restores. No open file needs a symlink: CRIU dumps resolved names. The flag stays on the mounts, so the caller must remove it before the container runs (package guard). Source: CRIU 4.2, criu/mount-v2.c,
// do_bind_mount_v2; Linux, mount(2), MS_NOSYMFOLLOW.
func FollowNone(dir string) error {
	return changeRecords(dir, "mountpoints-*.img", func(all []*mnt.MntEntry) error {
		shared := map[uint32]bool{} // devices
		for _, e := range all {
			shared[e.GetRootDev()] = shared[e.GetRootDev()] || e.GetExtKey() != ""
		}
		for _, e := range all {
			if shared[e.GetRootDev()] && e.GetMountpoint() != "/" {
				e.Flags = new(e.GetFlags() | unix.MS_NOSYMFOLLOW)
			}
		}
		return nil
	})
}
