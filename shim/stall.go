package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/worker"
)

// endStalled ends the restore if it makes no progress, until over is closed. filling is nil where nothing is filled in. The function that it returns waits for its
// end, and gives an error, DeadlineExceeded, if that was why.
func (s *service) endStalled(c *container, filling *worker.Filling, over <-chan struct{}) func() error {
	log := filepath.Join(c.work, restoreLog)
	patience := time.Duration(s.config.Restore.Timeout) * time.Second
	stalled, ended := atomic.Bool{}, make(chan struct{})
	go func() {
		defer close(ended)
		stalled.Store(c.runtime.Restoring(c.work).EndStalled(over, patience, func() string { return c.progress(log, filling) }))
	}()
	return func() error {
		<-ended
		if !stalled.Load() {
			return nil
		}
		return failure.New(context.DeadlineExceeded,
			"see whether a disk or a network file system of the container hangs; where the host is only slow, raise timeout under [restore] in /etc/cryo/config.toml",
			"restore %s: CRIU has made no progress for %s, and was ended; the last line of its log is %q", c.request.ID, patience, runc.LastLine(log))
	}
}

// progress returns what is another as long as the restore goes on, beside what CRIU reads and writes: CRIU's log, and the memory that is brought. filling is nil where nothing is filled in. A member of a group that
// awaits the others stands still, and is not at fault: the restore process has a limit of its own.
func (c *container) progress(log string, filling *worker.Filling) string {
	if c.awaiting.Load() {
		return time.Now().String()
	}
	var logged, brought int64
	if info, err := os.Stat(log); err == nil {
		logged = info.Size()
	}
	if filling != nil { // processes may wait for memory; it reads some bytes even if there is none
		brought = runc.Read(filling.PID()) / int64(os.Getpagesize())
	}
	return fmt.Sprint(logged, brought)
}
