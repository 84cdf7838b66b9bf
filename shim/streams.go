package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/shim/worker"
)

// FIFOs in the bundle of a container that is restored, where its creator has named no streams.
const (
	streamIn  = "stdin"  // its standard input
	streamOut = "stdout" // its standard output, which a client that attaches reads
)

// giveStreams gives a container that is restored pipes where its creator has named no streams. The stock service would
// give it the host's /dev/null, opened for reading: processes that write get EBADF, those that read get the end of
// their input, and CRIU cannot dump them again, as the file is on none of the container's mounts. For a container that
// is created, runc's init puts the container's own /dev/null in its place, but nothing does for one that is restored.
func giveStreams(r *taskAPI.CreateTaskRequest, bundle string) error {
	if r.Terminal {
		return nil
	}
	if r.Stdin == "" {
		// No process writes to it: a reader waits.
		stdin := filepath.Join(bundle, streamIn)
		if err := unix.Mkfifo(stdin, 0o600); err != nil {
			return fmt.Errorf("make standard input: %w", err)
		}
		r.Stdin = stdin
	}
	if r.Stdout == "" && r.Stderr == "" {
		pipe := worker.OutputPipe(bundle)
		if err := errors.Join(unix.Mkfifo(pipe, 0o600), unix.Mkfifo(filepath.Join(bundle, streamOut), 0o600)); err != nil {
			return fmt.Errorf("make standard output: %w", err)
		}
		r.Stdout, r.Stderr = pipe, pipe
	}
	return nil
}

// takeStreams undoes giveStreams.
func takeStreams(bundle string) error {
	for _, path := range []string{filepath.Join(bundle, streamIn), filepath.Join(bundle, streamOut), worker.OutputPipe(bundle)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("undo a restore: %w", err)
		}
	}
	return nil
}

// keepsOutput reports whether giveStreams has given the container its output.
func (c *container) keepsOutput() bool {
	return c.request.Stdout == worker.OutputPipe(c.bundle.dir)
}

// keepOutput begins to keep the container's output, which a process must be able to write by now. It ends when no process can write it any more.
func (c *container) keepOutput() error {
	if !c.keepsOutput() {
		return nil
	}
	pipe, err := os.OpenFile(c.request.Stdout, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("keep the output: %w", err)
	}
	go worker.KeepOutput(pipe, filepath.Join(c.bundle.dir, streamOut), c.bundle.dir)
	return nil
}

// holdOpen opens FIFOs for reading and writing, and returns a function that closes them. The stock service opens each for writing, which blocks until
// a process reads; its client, who should, may have died. Paths that are not FIFOs are skipped.
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

// inputTime bounds how long the stock service may take to open a container's standard input.
const inputTime = 10 * time.Second

// holdInput opens standard input for reading and writing, if it is a FIFO. The returned function waits in the background until the stock service has the FIFO open for writing, and closes it
// then. The service opens the FIFO in the background, and its Start does not wait for that. If no process had the FIFO open for writing at any moment, the service would read the end of input,
// and close the console of a terminal.
func holdInput(path string) (closeLater func()) {
	closeNow := holdOpen(path)
	return func() {
		go func() {
			defer closeNow()
			for deadline := time.Now().Add(inputTime); !writes(path) && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
		}()
	}
}

// writes reports whether this process has a file open for writing and not for reading. Where that is not known it reports true. It does not go by the names of open files: the stock
// service opens them in a mount namespace that is gone by then (see [criu.InOwnMounts]), and the kernel names them otherwise.
func writes(path string) bool {
	const dir = "/proc/self/fd"
	var wanted unix.Stat_t
	entries, err := os.ReadDir(dir)
	if err != nil || unix.Stat(path, &wanted) != nil {
		return true
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		var s unix.Stat_t
		if err != nil || unix.Fstat(fd, &s) != nil || s.Dev != wanted.Dev || s.Ino != wanted.Ino {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil && flags&unix.O_PATH == 0 && flags&unix.O_ACCMODE == unix.O_WRONLY {
			return true
		}
	}
	return false
}
