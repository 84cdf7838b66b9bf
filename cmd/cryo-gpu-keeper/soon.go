//go:build cgo

package main

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// slice is how long a thread wants to have a processor at a time: less than others, so that it gets one sooner (Linux 6.12 and newer).
const slice = 100 * time.Microsecond

// soon has this process's threads get a processor as soon as they want one. They only hand on what the device has copied, which others on all
// processors wait for. What the kernel does not do is done without.
func soon() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads { // those to come have it from these
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.SchedSetAttr(id, &unix.SchedAttr{Nice: -20, Runtime: uint64(slice)}, 0)
		}
	}
}
