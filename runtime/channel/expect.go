package channel

import (
	"os"

	"golang.org/x/sys/unix"
)

// Expect has the kernel make room for so many more descriptors of this process, where it may have as many. Where several threads share the table of
// them, as in every program in Go, its growing waits for all processors: 5 to 20 ms each time, which is better spent before a process waits.
func Expect(more int) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return
	}
	if fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, len(names)+more); err == nil {
		unix.Close(fd)
	}
}
