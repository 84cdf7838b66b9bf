package library

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// request sends a message, with copies of files, and gives its first answer with what came with it.
func (p *Process) request(ctx context.Context, step string, h header, payload []byte, files []*os.File) (header, []byte, []*os.File, error) {
	p.id++
	h.ID = p.id
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	message := h.encode(payload)
	err := p.when(ctx, unix.POLLOUT, func() error {
		return unix.Sendmsg(p.socket, message, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
	if err != nil {
		return header{}, nil, nil, &GoneError{PID: p.pid, Step: step, Err: err}
	}
	return p.receive(ctx, step, h.Kind)
}

// receive returns the next answer to the last request. The files are the caller's.
func (p *Process) receive(ctx context.Context, step string, k kind) (header, []byte, []*os.File, error) {
	message, oob := make([]byte, headerSize+maxPayload), make([]byte, unix.CmsgSpace(4*batch))
	var n, oobn, flags int
	err := p.when(ctx, unix.POLLIN, func() (err error) {
		n, oobn, flags, _, err = unix.Recvmsg(p.socket, message, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		return err
	})
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return header{}, nil, nil, &GoneError{PID: p.pid, Step: step, Err: err}
	}
	files, err := rights(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("a message is longer than any is, or there is no room for its descriptors here")
	}
	var h header
	var payload []byte
	if err == nil {
		h, payload, err = decode(message[:n])
	}
	if err == nil && (h.Kind != k || h.ID != p.id) {
		err = fmt.Errorf("it answers request %d of kind %d, not %d of kind %d", h.ID, h.Kind, p.id, k)
	}
	if err != nil {
		closeFiles(files)
		return header{}, nil, nil, p.wrong(err)
	}
	return h, payload, files, nil
}

// when does something with the socket as soon as that does not wait. The process may hold the socket too, so it is never trusted to be in
// non-blocking mode.
func (p *Process) when(ctx context.Context, events int16, do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		wait := 100 * time.Millisecond
		if deadline, ok := ctx.Deadline(); ok {
			wait = max(min(wait, time.Until(deadline)), time.Millisecond)
		}
		poll := []unix.PollFd{{Fd: int32(p.socket), Events: events}}
		if _, err := unix.Poll(poll, int(wait.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// rights takes the descriptors out of control messages.
func rights(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for i := range messages {
		fds, wrong := unix.ParseUnixRights(&messages[i])
		if err = errors.Join(err, wrong); wrong == nil {
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "device memory"))
			}
		}
	}
	return files, err
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (p *Process) hangUp() error {
	if p.socket < 0 {
		return nil
	}
	err := unix.Close(p.socket)
	p.socket = -1
	return err
}

// driverMajor is the character devices' of NVIDIA's driver. Source: Documentation/admin-guide/devices.txt.
const driverMajor = 195

// TestDriver is the variable of the environment that lets the memory of a driver for tests pass, which is files.
const TestDriver = "CRYO_GPU_TEST_DRIVER"

// checkMemory is an error unless a descriptor is the driver's.
func checkMemory(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look at a descriptor: %w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(uint64(st.Rdev)) == driverMajor:
		return nil
	case st.Mode&unix.S_IFMT == unix.S_IFREG && os.Getenv(TestDriver) == "1":
		return nil
	}
	return errors.New("what it gives is not memory of NVIDIA's driver")
}
