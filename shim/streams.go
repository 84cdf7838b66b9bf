package shim

import (
	"fmt"
	"os"
	"path/filepath"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"
)

// nowhere is the file that the stock service copies output to that nobody wants. Who attaches can open it as well.
const nowhere = "/dev/null"

// streamIn in the bundle is the standard input of a container that is restored, where its creator has named none.
const streamIn = "stdin"

// giveStreams gives a container that is restored pipes where its creator has named no streams. The stock service would
// give it the host's /dev/null, opened for reading: processes that write get EBADF, those that read get the end of
// their input, and CRIU cannot dump them again, as the file is on none of the container's mounts. For a container that
// is created, runc's init puts the container's own /dev/null in its place, but nothing does for one that is restored.
func giveStreams(r *taskAPI.CreateTaskRequest, bundle string) error {
	if r.Terminal {
		return nil
	}
	if r.Stdin == "" {
		// Nobody writes to it: who reads from it waits.
		stdin := filepath.Join(bundle, streamIn)
		if err := unix.Mkfifo(stdin, 0o600); err != nil {
			return fmt.Errorf("make standard input: %w", err)
		}
		r.Stdin = stdin
	}
	if r.Stdout == "" && r.Stderr == "" {
		r.Stdout, r.Stderr = nowhere, nowhere
	}
	return nil
}

// holdOpen opens FIFOs for reading and writing, and returns a function that closes them. The stock service opens each for writing, which blocks until
// somebody reads; its client, who should, may have died. Paths that are not FIFOs are skipped.
func holdOpen(paths ...string) (closeAll func()) {
	var open []*os.File
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&os.ModeNamedPipe == 0 {
			continue
		}
		if f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
			open = append(open, f)
		}
	}
	return func() {
		for _, f := range open {
			_ = f.Close()
		}
	}
}
