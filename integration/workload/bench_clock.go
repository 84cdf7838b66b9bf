package main

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// clock ticks a thousand times a second on a thread of its own, and notices how long it did not.
type clock struct{ longest atomic.Int64 } // nanoseconds

func startClock() *clock {
	c := &clock{}
	go func() {
		runtime.LockOSThread()
		last := time.Now()
		for {
			rest := unix.NsecToTimespec(int64(time.Millisecond))
			_ = unix.Nanosleep(&rest, nil) // a signal that ends it early does no harm
			now := time.Now()
			c.note(now.Sub(last))
			last = now
		}
	}()
	return c
}

func (c *clock) note(gap time.Duration) {
	for {
		longest := c.longest.Load()
		if int64(gap) <= longest || c.longest.CompareAndSwap(longest, int64(gap)) {
			return
		}
	}
}

// gap is the longest one since the last call.
func (c *clock) gap() time.Duration { return time.Duration(c.longest.Swap(0)) }
