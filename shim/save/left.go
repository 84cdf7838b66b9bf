package save

import (
	"fmt"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/shim/config"
)

// much is how many bytes of a process the driver may save before LeftToDriver says so. The driver always saves contexts, code and small allocations.
const much = 1 << 30

// LeftToDriver returns a line for each process that should have handed its device memory over to the keeper and did not: the driver saved all of it, or [much] and more than half. The line says why.
// g may be nil.
func LeftToDriver(g *image.GPU) (lines []string) {
	if g == nil {
		return nil
	}
	for _, p := range g.Processes {
		handed := p.Handed()
		switch {
		case p.Fallback != "":
			lines = append(lines, fmt.Sprintf("%d (%s) went by the driver: %s", p.PID, p.Command, p.Fallback))
		case g.Engine == image.KeeperEngine && p.Memory-handed >= much && handed < p.Memory/2:
			lines = append(lines, fmt.Sprintf("%d (%s) handed over %s of %s of device memory. The rest went by the driver: pools of cudaMallocAsync, arrays, allocations below 2 MiB, "+
				"and what other processes may have", p.PID, p.Command, config.Size(handed), config.Size(p.Memory)))
		}
	}
	return lines
}
