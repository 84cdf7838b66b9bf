package restore

import (
	"context"
	"runtime"
	"time"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/warm"
)

// manyCores is from how many on CRIU, containerd and what they restore leave cores to a pull.
const manyCores = 8

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
func behindRoom(cores int, available, pulled int64) int64 {
	room := min((available-2*pulled)/2, behindMost)
	if cores < manyCores || room < behindLeast {
		return 0
	}
	return room
}

// Before the container runs, a segment is pulled for so many cores, and so many at most. Each takes a core to receive and write it, and as much at a registry on
// the same machine: where they come quickly, those of a quarter of the cores are left for what makes the container run.
const (
	headCores = 8
	headMost  = 4

	quickCores = 3 // of eight
	quickMost  = 8
)

// headSegments says how many segments that is, and how many where they come quickly.
func headSegments(cores int) (few, most int) {
	return min(cores/headCores, headMost), min(cores*quickCores/8, quickMost)
}

// throughCache has a pull go through the page cache where there are cores to copy and memory to hold it: the process that fills the
// container's memory finds it there, and the disk is not waited for. It gives how many segments may be pulled at once before the container
// runs, and how many where they come quickly: none where they would go to the disk, for which containerd's database waits then.
func throughCache(ctx context.Context, p *registry.Puller) (few, most int, err error) {
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
	cores := runtime.GOMAXPROCS(0)
	room := behindRoom(cores, available, pulled)
	if room == 0 {
		return 0, 0, nil
	}
	behind := direct.NewBehind(room)
	behind.Later(behindLater)
	p.Behind(behind)
	few, most = headSegments(cores)
	return few, most, nil
}
