package restore

import (
	"context"
	"time"

	"github.com/cryo-project/cryo/image/cores"
	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/warm"
)

// Of memory that what is pulled may take while it waits for the disk.
const (
	behindLeast = 512 << 20 // bytes; with less it would wait all the time
	behindMost  = 32 << 30
)

// behindLater is for how long a pull leaves the disk to others: a registry on the same machine, containerd's database, the container. What
// a line brings in that time is filled in when the disk gets it.
const behindLater = 2 * time.Second

// behindRoom says how much that is, of what is available on a machine beside the memory that is restored; 0: what is pulled goes past the
// page cache.
func behindRoom(available, pulled int64) int64 {
	room := min((available-2*pulled)/2, behindMost)
	if room < behindLeast {
		return 0
	}
	return room
}

// headSegments says how many segments are pulled at once before the container runs, and how many where they come quickly: a quarter and three quarters of
// half of the spare cores. Each takes a core to receive and write it, and as much at a registry on the same machine. None: there are too few cores for any.
func headSegments(all int) (minParallel, maxParallel int) {
	half := cores.Half(all)
	return min(half/4, 4), min(half*3/4, 8)
}

// throughCache has a pull go through the page cache where there are cores to copy and memory to hold it: the process that fills the
// container's memory finds it there, and the disk is not waited for. It gives how many segments may be pulled at once before the container
// runs, and how many where they come quickly: none where they would go to the disk, for which containerd's database waits then.
func throughCache(ctx context.Context, p *registry.Puller) (minParallel, maxParallel int, err error) {
	missing, err := p.Missing(ctx)
	if err != nil {
		return 0, 0, err
	}
	var pulled int64
	for _, d := range missing {
		pulled += d.Size
	}
	available, err := warm.Available()
	if err != nil {
		return 0, 0, nil // past the page cache, which needs none
	}
	minParallel, maxParallel = headSegments(cores.All())
	room := behindRoom(available, pulled)
	if minParallel == 0 || room == 0 {
		return 0, 0, nil
	}
	behind := direct.NewBehind(room)
	behind.Later(behindLater)
	p.Behind(behind)
	return minParallel, maxParallel, nil
}
