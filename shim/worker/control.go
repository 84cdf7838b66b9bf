package worker

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/guard"
)

// Control is a directory in a container by which its program and cryo talk; see CONTRACT.md. All in it is the container's: cryo acts there as the container's first process.
type Control struct {
	Variable string // names the directory, in the container's environment
	Dir      string
	Ready    string // the name of the file by which the program says that its snapshot may be taken
	complete string // the name of a file that a restore makes; empty: none
}

// eventsFile is the FIFO from which a program reads what has happened to it.
const eventsFile = "events"

// controls are the kinds of directories. The first whose variable the environment has counts.
var controls = []Control{
	{Variable: "CRYO_CONTROL_DIR", Ready: "ready"},
	// Source: ai-dynamo/snapshot, docs/reference/workload-contract.md and api.md.
	{Variable: "SNAPSHOT_CONTROL_DIR", Ready: "ready-for-snapshot", complete: "restore-complete"},
	{Variable: "DYN_SNAPSHOT_CONTROL_DIR", Ready: "ready-for-snapshot", complete: "restore-complete"},
}

// ControlVariable names the control directory, in a container's environment.
const ControlVariable = "CRYO_CONTROL_DIR"

// ControlOf returns the control directory that a container's environment names; nil: it names none.
func ControlOf(spec *specs.Spec) (*Control, error) {
	env := environment(spec)
	for _, c := range controls {
		if c.Dir = env[c.Variable]; c.Dir == "" {
			continue
		}
		if !path.IsAbs(c.Dir) {
			return nil, failure.New(errdefs.ErrInvalidArgument, "name a directory of the container by its absolute path", "the container's environment has %s=%s", c.Variable, c.Dir)
		}
		return &c, nil
	}
	return nil, nil
}

// in calls do with a descriptor of the directory, as the process pid. Where there is no such directory, do is not called: the program has not made it, or does not use it.
func (c *Control) in(pid int, do func(dir int) error) error {
	err := guard.As(pid, func() error {
		dir, err := unix.Openat2(unix.AT_FDCWD, c.Dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		return do(dir)
	})
	if err != nil {
		return fmt.Errorf("in the control directory %s: %w", c.Dir, err)
	}
	return nil
}

// Restored writes for the program of the restored container, of which pid is the first process, what is new, and then the event. The container stands still.
func (c *Control) Restored(pid int, changes *Changes) error {
	data, err := changes.file()
	if err != nil {
		return err
	}
	err = c.in(pid, func(dir int) error {
		if err := replace(dir, changesFile, data); err != nil {
			return err
		}
		if c.complete == "" {
			return nil
		}
		return replace(dir, c.complete, nil)
	})
	if err == nil {
		err = c.tell(pid, fmt.Sprintf("restored %d\n", changes.Generation))
	}
	if err != nil {
		return failure.New(errdefs.ErrFailedPrecondition, "let the container's user write to the directory that "+c.Variable+" names, or leave the variable out",
			"tell the program that it was restored: %v", err)
	}
	return nil
}

// Resumed writes the event that the program goes on after a checkpoint, whether there is a snapshot or not.
func (c *Control) Resumed(pid int) error { return c.tell(pid, "resumed\n") }

// replace writes a file in a directory, for its user alone. Whatever has its name is replaced, and not followed.
func replace(dir int, name string, data []byte) error {
	const attempt = ".cryo-"
	made := attempt + rand.Text()
	fd, err := unix.Openat(dir, made, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	for err == nil && len(data) > 0 {
		var n int
		n, err = unix.Write(fd, data)
		data = data[max(n, 0):]
	}
	if err = errors.Join(err, unix.Close(fd)); err == nil {
		err = unix.Renameat(dir, made, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, made, 0)
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// tell writes a line into the FIFO, if the program has made it and has it open. A line that finds no room is left out: the program does not read.
func (c *Control) tell(pid int, line string) error {
	fifo := -1
	err := c.in(pid, func(dir int) (err error) {
		fifo, err = openFIFO(dir)
		return err
	})
	if fifo < 0 || err != nil {
		return err
	}
	defer unix.Close(fifo)
	// What it is and whether the process may write to it is known: no device is opened here.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fifo), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil // nothing has it open
	}
	if err != nil {
		return fmt.Errorf("open %s/%s: %w", c.Dir, eventsFile, err)
	}
	defer unix.Close(fd)
	if _, err = unix.Write(fd, []byte(line)); errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

// openFIFO returns a descriptor of the FIFO, without access, that this thread may write to; -1: there is none.
func openFIFO(dir int) (int, error) {
	fd, err := unix.Openat(dir, eventsFile, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("look at %s: %w", eventsFile, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFIFO {
		err = errors.New("it is no FIFO")
	}
	if err == nil {
		err = unix.Faccessat2(fd, "", unix.W_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("look at %s: %w", eventsFile, err)
	}
	return fd, nil
}

// IsReady reports whether the program of the container, of which pid is the first process, has said that its snapshot may be taken.
func (c *Control) IsReady(pid int) (ready bool, err error) {
	err = c.in(pid, func(dir int) error {
		var st unix.Stat_t
		err := unix.Fstatat(dir, c.Ready, &st, unix.AT_SYMLINK_NOFOLLOW)
		ready = err == nil
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	})
	return ready, err
}
