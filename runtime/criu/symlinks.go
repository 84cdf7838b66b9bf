package criu

import (
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"golang.org/x/sys/unix"
)

// FollowNone has CRIU follow no symlinks in the bind mounts of the host's files, by the images in dir: others may share these, and put a link in the place of what was reviewed while CRIU
// is at work. No file that is open has a link in its name. CRIU gives a mount's flags to mount(2), so who restores takes this one away again. Source: CRIU 4.2, criu/mount-v2.c,
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
