package main

import (
	"context"
	"runtime"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/warm"
)

// manyCores is from how many on CRIU, containerd and what they restore leave cores to a pull.
const manyCores = 8

func spareCores() bool { return runtime.GOMAXPROCS(0) >= manyCores }

// A registry is quick if it gives so much in this time, the way to it included: 200 MB/s.
const (
	quickPart = 2 << 20 // bytes
	quickPull = 10 * time.Millisecond
)

// isQuick tries that with a part of a segment.
func isQuick(ctx context.Context, read func(context.Context, ocispec.Descriptor, int64, []byte, func([]byte) error) error, d ocispec.Descriptor) bool {
	ctx, cancel := context.WithTimeout(ctx, quickPull)
	defer cancel()
	return read(ctx, d, 0, make([]byte, min(quickPart, d.Size)), unchecked) == nil
}

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
