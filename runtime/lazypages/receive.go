package lazypages

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

// Receive takes what CRIU sends over conn until it says that all tasks run. task gets each process that has memory, by its pid in
// the images, and its userfaultfd, which is task's to close. A connection that ends before gives io.ErrUnexpectedEOF, one that is not understood a
// [*ProtocolError]; errors of task are passed on.
func Receive(conn *net.UnixConn, task func(pid, uffd int) error) error {
	for n := 0; n <= maxTasks; n++ {
		var word [4]byte
		fds, err := readFull(conn, word[:])
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
		if fds, err = readFull(conn, word[:1]); err != nil {
			return err
		}
		if len(fds) != 1 {
			closeAll(fds)
			return misunderstood("%d descriptors for pid %d", len(fds), pid)
		}
		if err := task(int(pid), fds[0]); err != nil {
			return err
		}
	}
	return misunderstood("too many tasks")
}

// readFull fills b and gives the descriptors that came with it. After an error there are none.
func readFull(conn *net.UnixConn, b []byte) (fds []int, err error) {
	for len(b) > 0 {
		oob := make([]byte, unix.CmsgSpace(4*4))
		n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
		got, parseErr := descriptors(oob[:oobn])
		fds = append(fds, got...)
		switch {
		case err == nil && n == 0 && oobn == 0, errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		case err == nil && flags&unix.MSG_CTRUNC != 0:
			err = misunderstood("too many descriptors")
		case err == nil:
			err = parseErr
		}
		if err != nil {
			closeAll(fds)
			return nil, fmt.Errorf("receive processes from CRIU: %w", err)
		}
		b = b[n:]
	}
	return fds, nil
}

// descriptors takes descriptors out of the control messages that came with a message.
func descriptors(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, misunderstood("control messages: %v", err)
	}
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			closeAll(fds)
			return nil, misunderstood("control messages: %v", err)
		}
		for _, fd := range got {
			unix.CloseOnExec(fd)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
