package restore

import (
	"context"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/runtime/host"
)

// cacheLeast is how much memory, in bytes, must be left for what is pulled: with less it would wait for the disk all the time.
const cacheLeast = 512 << 20

// headSegments returns how many segments are pulled at once before the container runs: one for eight cores, four at most. A registry on the same machine may read them
// from the disk that containerd's database, runc and CRIU wait for: with twice as many the container answered half as late again.
func headSegments(all int) int { return min(image.HalfCores(all)/4, 4) }

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
	parallel = headSegments(image.AllCores())
	available, err := host.AvailableMemory("/")
	// Twice: as processes' memory, and as files.
	if parallel == 0 || err != nil || available-2*pulled < 2*cacheLeast {
		return 0, nil //nolint:nilerr // not known is too little
	}
	p.ThroughCache()
	return parallel, nil
}
