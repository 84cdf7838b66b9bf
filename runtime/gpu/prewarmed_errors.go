package gpu

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// roomError returns the error that need bytes of device memory do not fit on a device, with what else their processes want there, where so many are free; budget, unless it is 0, is
// what they do not fit into. busy others on it are in use by restores.
func roomError(device string, need, rest, free, budget int64, busy int) error {
	hint := "see with nvidia-smi who uses the GPU's memory, or choose another GPU with --device"
	text := fmt.Sprintf(" and its processes %d MiB more, and %d MiB are free or can be made so", mib(rest), free>>20)
	if budget > 0 {
		hint = fmt.Sprintf("raise it to %d MiB at least: gpu under [prewarm] in the configuration", mib(need))
		text = fmt.Sprintf(", and the budget of all that is kept loaded there is %d MiB", budget>>20)
	}
	if busy > 0 {
		text += fmt.Sprintf("; restores are using %d snapshots that are kept loaded there", busy)
	}
	return failure.New(errdefs.ErrResourceExhausted, hint, "prewarm: the snapshot's device memory takes %d MiB on %s%s", mib(need), device, text)
}

// mib rounds up.
func mib(n int64) int64 { return (n + 1<<20 - 1) >> 20 }
