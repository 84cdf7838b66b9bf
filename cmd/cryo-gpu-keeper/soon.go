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
	// A thread that is new has it from the one that made it, if that has it already.
	known := map[string]bool{}
	for found := true; found; {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		found = false
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || known[t.Name()] {
				continue
			}
			known[t.Name()], found = true, true
			_ = unix.SchedSetAttr(id, &unix.SchedAttr{Nice: -20, Runtime: uint64(slice)}, 0)
		}
	}
}
