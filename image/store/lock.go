package store

import (
	"context"
	"os"
)

// Lock opens the file at path, creating it, and takes its flock: unix.LOCK_EX or unix.LOCK_SH. It waits as long as ctx allows.
// Closing the file gives the lock back, and so does the death of the process.
func Lock(ctx context.Context, path string, how int) (*os.File, error) {
	return lockFile(ctx, path, how)
}

// TryLock takes the flock of an open file and says whether it got it, without waiting.
func TryLock(f *os.File, how int) (bool, error) { return tryLock(f, how) }
