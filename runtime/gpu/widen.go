package gpu

import "golang.org/x/sys/unix"

// descriptors is how many this process may have open for other purposes.
const descriptors = 256

// widen makes room in this process's table for so many more descriptors. The kernel doubles it when it is full, and has all who want one wait for
// tens of milliseconds each time where threads share it (expand_fdtable of fs/file.c).
func widen(count int) {
	if count == 0 {
		return
	}
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(null)
	// Beyond the limit on open files it fails: then it grows when it has to.
	if high, err := unix.FcntlInt(uintptr(null), unix.F_DUPFD_CLOEXEC, count+descriptors); err == nil {
		_ = unix.Close(high)
	}
}
