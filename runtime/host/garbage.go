package host

import (
	"runtime"
	"runtime/debug"
)

// startPercent is a GOGC with which Go collects garbage for the first time when the heap has 16 MiB. A start of cryo or its shim needs less.
const startPercent = 400

// CollectLater puts off the first collection of this process's garbage until the heap has 16 MiB. GOGC is as before from then on. Go collects at 4 MiB by default, and a shim, which has 40 percent, at 1.1 MiB: every
// start reaches that, and the collection was a tenth of what cryo computed until it ended, and a fifth of what the shim computed until its container ran.
func CollectLater() {
	percent := debug.SetGCPercent(startPercent)
	type collected struct{ _ *int }
	runtime.AddCleanup(&collected{}, func(percent int) { debug.SetGCPercent(percent) }, percent)
}
