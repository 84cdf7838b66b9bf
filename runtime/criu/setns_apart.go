package criu

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// InOwnMounts calls do on a thread that has a mount namespace of its own, as has what do starts: what is mounted on the host is mounted there too, and the host hears
// nothing of what is mounted and unmounted there. The thread ends when do has returned.
func InOwnMounts(do func() error) error {
	done := make(chan error)
	go apart(done, do)
	return <-done
}

func apart(done chan<- error, do func() error) {
	// For good: the thread ends with the goroutine.
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() { // the first thread, which /proc/self shows, stays at home
		over := make(chan error)
		go apart(over, do)
		done <- <-over
		runtime.UnlockOSThread()
		return
	}
	err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "")
	}
	if err != nil {
		done <- os.NewSyscallError("make a mount namespace", err)
		return
	}
	done <- do()
}
