package main

import (
	"context"
	"runtime"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/warm"
)

// manyCores is from how many on CRIU, containerd and what they restore leave cores to a pull.
const manyCores = 8

// Of memory that what is pulled may take while it waits for the disk.
const (
	behindLeast = 512 << 20 // bytes; with less it would wait all the time
	behindMost  = 8 << 30
)

// behindRoom says how much that is, of what is available on a machine beside the memory that is restored; 0: what is pulled goes past the
// page cache.
func behindRoom(cores int, available, pulled int64) int64 {
	room := min((available-2*pulled)/2, behindMost)
	if cores < manyCores || room < behindLeast {
		return 0
	}
	return room
}

// throughCache has a pull go through the page cache where there are cores to copy and memory to hold it: the process that fills the
// container's memory finds it there, and the disk is not waited for.
func throughCache(ctx context.Context, p *registry.Puller) error {
	missing, err := p.Missing(ctx)
	if err != nil {
		return err
	}
	var pulled int64
	for _, d := range missing {
		pulled += d.Size
	}
	available, err := warm.Available()
	if err != nil {
		return nil // past the page cache, which needs none
	}
	if room := behindRoom(runtime.GOMAXPROCS(0), available, pulled); room > 0 {
		p.Behind(direct.NewBehind(room))
	}
	return nil
}
