package shim

import (
	"runtime/debug"
	"time"
)

const (
	// startPercent has the heap grow to 16 MiB before it is collected, which is ten times what a start needs.
	startPercent = 400
	// startTime is how long after the shim's beginning its container is taken to be running. Eight restores at once on 2 cores take 7 seconds.
	startTime = 10 * time.Second
)

// collectLater keeps the garbage collector away while a container starts. The stock shim has it run at a heap of 1.1 MiB (it sets 40
// percent), which is reached on the way: collecting was a fifth of what the shim computed until the container ran. What is done
// then, at rest, the stock shim does twice a minute.
func collectLater() {
	percent := debug.SetGCPercent(startPercent)
	time.AfterFunc(startTime, func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}
