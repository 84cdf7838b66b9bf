package shim

import (
	"runtime/debug"
	"time"

	"github.com/cryo-project/cryo/runtime/host"
)

// startTime is how long after the shim's beginning its container is taken to be running. Eight restores at once on 2 cores take 7 seconds.
const startTime = 10 * time.Second

// collectLater keeps the garbage collector away while a container starts, and then collects once, which the stock shim does twice a minute.
func collectLater() {
	host.CollectLater()
	time.AfterFunc(startTime, debug.FreeOSMemory)
}
