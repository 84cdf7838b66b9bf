package criu

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// sockets are the names to which unix sockets are bound in the file system, by their inodes, by network namespace.
type sockets map[string]map[string]string

// of reads those in a process's network namespace.
func (s sockets) of(pid int) map[string]string {
	namespace, err := os.Readlink(dir(pid, "ns", "net"))
	if err != nil {
		return nil
	}
	if _, known := s[namespace]; !known {
		text, _ := os.ReadFile(dir(pid, "net", "unix"))
		s[namespace] = parseSockets(string(text))
	}
	return s[namespace]
}

// parseSockets returns the sockets of /proc/PID/net/unix that listen or receive datagrams by a name in the file system. Accepted connections have the name of their listener, and need none.
// Source: Linux, net/unix/af_unix.c, unix_seq_show.
func parseSockets(text string) map[string]string {
	const listens, stream, packets = 0x10000, 1, 5
	names := map[string]string{}
	for line := range strings.Lines(text) {
		words := strings.SplitN(strings.TrimSuffix(line, "\n"), ": ", 2)
		if len(words) != 2 {
			continue
		}
		var count, protocol, flags, kind, state uint64
		var inode, name string
		if n, _ := fmt.Sscanf(words[1], "%x %x %x %x %x %s", &count, &protocol, &flags, &kind, &state, &inode); n != 6 {
			continue
		}
		if _, after, has := strings.Cut(words[1], inode+" "); has {
			name = after
		}
		if name == "" || name[0] == '@' || (kind == stream || kind == packets) && flags&listens == 0 {
			continue
		}
		names[inode] = name
	}
	return names
}

// renamed refuses a unix socket whose file has another name than the socket was bound to. CRIU binds it again to the name that the kernel has, and the other is missing after a restore. Source: CRIU 4.2,
// criu/sk-unix.c, unix_process_name.
func (p process) renamed(known sockets) *failure.Error {
	for _, d := range p.descriptors {
		inode, is := strings.CutPrefix(d.target, "socket:[")
		if !is {
			continue
		}
		bound := known.of(p.pid)[strings.TrimSuffix(inode, "]")]
		if bound == "" {
			continue
		}
		file, now, err := socketFile(p.pid, d.number)
		if err != nil || file.Nlink == 0 { // without a name, none is lost
			continue
		}
		if file.Nlink == 1 && leadsTo(p.pid, bound, now, file) {
			continue
		}
		return failure.New(errdefs.ErrFailedPrecondition, "have the program bind the socket to the name by which it is reached, or close it before the checkpoint; supervisord does without its control socket where the configuration has no [unix_http_server], or has [inet_http_server] instead",
			RuleRenamed+": %s has a socket that was bound to %s, and whose file was renamed or linked since: CRIU would lose its other name", name(p.pid), bound).By(RuleRenamed)
	}
	return nil
}

// socketFile returns the file that a unix socket is bound to, and its path at present. Nothing is changed about the socket. Sources: pidfd_getfd(2); Linux, net/unix/af_unix.c, unix_open_file.
func socketFile(pid int, number string) (file unix.Stat_t, now string, err error) {
	const siocUnixFile = 0x89e0 // SIOCUNIXFILE of linux/un.h
	n, err := strconv.Atoi(number)
	if err != nil {
		return file, "", err
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return file, "", err
	}
	defer unix.Close(process)
	socket, err := unix.PidfdGetfd(process, n, 0)
	if err != nil {
		return file, "", err
	}
	defer unix.Close(socket)
	handle, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), siocUnixFile, 0)
	if errno != 0 {
		return file, "", errno
	}
	defer unix.Close(int(handle))
	if err := unix.Fstat(int(handle), &file); err != nil {
		return file, "", err
	}
	now, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", handle))
	return file, now, err
}

// leadsTo reports whether the name to which a socket was bound leads to its file. Of a relative name it is not known to what it is relative: the last part is compared with that of the present path.
func leadsTo(pid int, bound, now string, file unix.Stat_t) bool {
	if !path.IsAbs(bound) {
		return path.Base(bound) == path.Base(now)
	}
	root, err := unix.Open(dir(pid, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(root)
	handle, err := unix.Openat2(root, bound, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return false
	}
	defer unix.Close(handle)
	var there unix.Stat_t
	err = unix.Fstat(handle, &there)
	return err == nil && there.Dev == file.Dev && there.Ino == file.Ino
}
