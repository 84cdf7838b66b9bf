package restore

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/cryo-project/cryo/image/cores"
	"github.com/cryo-project/cryo/image/registry"
)

// cacheLeast is how much memory, in bytes, must be left for what is pulled: with less it would wait for the disk all the time.
const cacheLeast = 512 << 20

// headSegments says how many segments are pulled at once before the container runs: one for eight cores, four at most. A registry on the same machine may read them
// from the disk that containerd's database, runc and CRIU wait for: with twice as many the container answered half as late again.
func headSegments(all int) int { return min(cores.Half(all)/4, 4) }

// throughCache has a pull go through the page cache where there are cores to copy and memory to hold it: who fills the
// container's memory finds it there, and the disk is not waited for. It gives how many segments may be pulled at once before the container
// runs: none where they would go to the disk, for which containerd's database waits then.
func throughCache(ctx context.Context, p *registry.Puller) (parallel int, err error) {
	missing, err := p.Missing(ctx)
	if err != nil {
		return 0, err
	}
	var pulled int64
	for _, d := range missing {
		pulled += d.Size
	}
	parallel = headSegments(cores.All())
	// Twice: as processes' memory, and as files.
	if parallel == 0 || availableMemory()-2*pulled < 2*cacheLeast {
		return 0, nil
	}
	p.ThroughCache()
	return parallel, nil
}

// availableMemory is how much memory can be had without swapping, in bytes; 0 if unknown. Source: proc_meminfo(5).
func availableMemory() (bytes int64) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &bytes); n == 1 {
			return bytes << 10
		}
	}
	return 0
}
