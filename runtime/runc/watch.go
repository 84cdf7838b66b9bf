package runc

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Watch returns a context that ends when progress has not changed for patience, with the cause that stalled returns. stop ends the watch. Without patience it waits for ever.
func Watch(ctx context.Context, patience time.Duration, progress func() string, stalled func() error) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if patience <= 0 {
		return ctx, func() { cancel(nil) }
	}
	go func() {
		ticker := time.NewTicker(min(orphanTime, patience/4))
		defer ticker.Stop()
		for before, since := "", time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if now := progress(); now != before {
				before, since = now, time.Now()
			} else if time.Since(since) >= patience {
				cancel(stalled())
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Progress changes while a process, or one that it has started, works: with what they have read and written, the time that they have computed, and with each that comes or goes.
func Progress(pid int) string {
	var all strings.Builder
	for _, pid := range append(descendants(pid), pid) {
		s, _ := stat(pid) // it may have ended
		fmt.Fprintf(&all, "%d %d %s", pid, s.computed, counted(pid))
	}
	return all.String()
}

// CoarseProgress is Progress in steps of 1 MiB and of a second of computing, so that a process which only reports how far it is makes none.
func CoarseProgress(pid int) string {
	var read, written, computed uint64
	for _, pid := range append(descendants(pid), pid) {
		s, _ := stat(pid) // it may have ended
		var r, w uint64
		_, _ = fmt.Sscanf(counted(pid), "rchar: %d\nwchar: %d", &r, &w)
		read, written, computed = read+r, written+w, computed+s.computed
	}
	return fmt.Sprint(read>>20, written>>20, computed/ticks)
}
