package fill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"

	"golang.org/x/sys/unix"
)

// SocketName is that of the socket in CRIU's work directory.
const SocketName = "lazy-pages.socket"

// finished says that CRIU has restored all tasks. Source: criu/uffd.c, LAZY_PAGES_RESTORE_FINISHED.
const finished = 0x52535446

// maxTasks is what a pid namespace can hold (PID_MAX_LIMIT).
const maxTasks = 1 << 22

// Task is a process that CRIU has restored without its memory.
type Task struct {
	PID  int // in the images
	UFFD int // its userfaultfd, to be closed some time
	Host int // its pid here; 0: not known
}

// Receive takes what CRIU sends over conn until it says that all tasks run. take gets each process that has memory. A connection that ends before gives io.ErrUnexpectedEOF, one that is not understood an
// error of kind Unknown; errors of task are passed on.
func Receive(conn *net.UnixConn, take func(Task) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("receive processes from CRIU: %w", err)
	}
	// Each task sends for itself, so this tells which it is.
	if err := raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) }); err != nil {
		return fmt.Errorf("receive processes from CRIU: %w", err)
	}
	for n := 0; n <= maxTasks; n++ {
		var word [4]byte
		fds, _, err := readFull(conn, word[:])
		if err != nil {
			return err
		}
		if len(fds) > 0 {
			closeAll(fds)
			return misunderstood("a descriptor without a pid")
		}
		pid := int32(binary.NativeEndian.Uint32(word[:]))
		switch {
		case uint32(pid) == finished:
			return nil
		case pid == 0 || pid == math.MinInt32:
			return misunderstood("pid %d", pid)
		case pid < 0:
			continue
		}
		fds, host, err := readFull(conn, word[:1])
		if err != nil {
			return err
		}
		if len(fds) != 1 {
			closeAll(fds)
			return misunderstood("%d descriptors for pid %d", len(fds), pid)
		}
		if err := take(Task{PID: int(pid), UFFD: fds[0], Host: host}); err != nil {
			return err
		}
	}
	return misunderstood("too many tasks")
}

// readFull fills b and gives the descriptors that came with it, and the pid of their sender. After an error there are none.
func readFull(conn *net.UnixConn, b []byte) (fds []int, sender int, err error) {
	for len(b) > 0 {
		oob := make([]byte, unix.CmsgSpace(4*4)+unix.CmsgSpace(unix.SizeofUcred))
		n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
		got, from, parseErr := control(oob[:oobn])
		fds, sender = append(fds, got...), from
		switch {
		case err == nil && n == 0, errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		case err == nil && flags&unix.MSG_CTRUNC != 0:
			err = misunderstood("too many descriptors")
		case err == nil:
			err = parseErr
		}
		if err != nil {
			closeAll(fds)
			return nil, 0, fmt.Errorf("receive processes from CRIU: %w", err)
		}
		b = b[n:]
	}
	return fds, sender, nil
}

// control takes descriptors, and the pid of the sender, out of the control messages that came with a message.
func control(oob []byte) (fds []int, sender int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, 0, misunderstood("control messages: %v", err)
	}
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch messages[i].Header.Type {
		case unix.SCM_CREDENTIALS:
			if from, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
				sender = int(from.Pid)
			}
		case unix.SCM_RIGHTS:
			got, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				closeAll(fds)
				return nil, 0, misunderstood("control messages: %v", err)
			}
			for _, fd := range got {
				unix.CloseOnExec(fd)
			}
			fds = append(fds, got...)
		}
	}
	return fds, sender, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
