package trust

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	filelock "github.com/checkpoint-restore/go-criu/v8/crit/images/file-lock"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	skopts "github.com/checkpoint-restore/go-criu/v8/crit/images/sk-opts"
	"github.com/containerd/containerd/v2/pkg/cap"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	maxName = 255
	// maxPath is what CRIU has room for, less what it appends to the name of a file that it makes.
	maxPath = unix.PathMax - 64
)

// inside refuses a path that can lead out of the directory that it is taken from, or that CRIU would cut off.
func inside(p string) error {
	if len(p) > maxPath {
		return fmt.Errorf("a path of %d bytes is too long", len(p))
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "..":
			return fmt.Errorf("the path %q leads out of its directory", p)
		case ghost.MatchString(part):
			return fmt.Errorf("the path %q has a name that CRIU gives deleted files", p)
		case len(part) > maxName:
			return fmt.Errorf("the path %q has a part of %d bytes", p, len(part))
		case strings.ContainsRune(part, 0):
			return fmt.Errorf("the path %q has a zero byte", p)
		}
	}
	return nil
}

// paths reviews the files that processes have open, and those that are made for them: CRIU opens and makes them as root, and takes
// their names for paths below the container's root.
func (r *imageReviewer) paths() error {
	if err := each(r.images, "files.img", func(e *fdinfo.FileEntry) error {
		r.privileged(e)
		return openFile(e)
	}); err != nil {
		return err
	}
	ghosts, err := files(r.images, "ghost-file-*.img")
	if err != nil {
		return err
	}
	for _, name := range ghosts {
		ghost, err := readFirst[ghostfile.GhostFileEntry](r.images, name)
		if err != nil {
			return err
		}
		switch kind := ghost.GetMode() & unix.S_IFMT; kind {
		case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO, unix.S_IFSOCK:
		default:
			return &DamagedError{File: name, Err: fmt.Errorf("a deleted file of type %o", kind)}
		}
	}
	o, err := openedIn(r.images)
	if err != nil {
		return err
	}
	return r.fifos(o)
}

// openFile reviews one open file. Source: CRIU 4.2, images/fdinfo.proto.
func openFile(e *fdinfo.FileEntry) error {
	if err := oneKind(e); err != nil {
		return err
	}
	var paths []string
	if f := e.GetReg(); f != nil {
		if !strings.HasPrefix(f.GetName(), "/") {
			return fmt.Errorf("the open file %q has no absolute path", f.GetName())
		}
		if f.GetFlags()&(unix.O_CREAT|unix.O_EXCL|unix.O_TRUNC) != 0 {
			return fmt.Errorf("the open file %q is to be made or emptied", f.GetName())
		}
		paths = append(paths, f.GetName())
	}
	if s := e.GetUsk(); s != nil {
		if other := s.GetUflags() &^ external; other != 0 {
			return fmt.Errorf("a unix socket with the flags %#x", other)
		}
		paths = append(paths, s.GetNameDir())
		if name := string(s.GetName()); !strings.HasPrefix(name, "\x00") { // else it is abstract, and no path
			paths = append(paths, strings.TrimSuffix(name, "\x00"))
		}
	}
	for _, wd := range e.GetIfy().GetWd() {
		paths = append(paths, wd.GetFHandle().GetPath())
	}
	for _, mark := range e.GetFfy().GetMark() {
		paths = append(paths, mark.GetIe().GetFHandle().GetPath(), mark.GetMe().GetPath())
	}
	for _, p := range paths {
		if err := inside(p); err != nil {
			return err
		}
	}
	return nil
}

// fieldOf is the field of an open file that its type says it has.
var fieldOf = map[fdinfo.FdTypes]protoName{
	fdinfo.FdTypes_REG: "reg", fdinfo.FdTypes_PIPE: "pipe", fdinfo.FdTypes_FIFO: "fifo", fdinfo.FdTypes_INETSK: "isk", fdinfo.FdTypes_UNIXSK: "usk",
	fdinfo.FdTypes_EVENTFD: "efd", fdinfo.FdTypes_EVENTPOLL: "epfd", fdinfo.FdTypes_INOTIFY: "ify", fdinfo.FdTypes_SIGNALFD: "sgfd",
	fdinfo.FdTypes_PACKETSK: "psk", fdinfo.FdTypes_TTY: "tty", fdinfo.FdTypes_FANOTIFY: "ffy", fdinfo.FdTypes_NETLINKSK: "nlsk", fdinfo.FdTypes_NS: "nsf",
	fdinfo.FdTypes_TUNF: "tunf", fdinfo.FdTypes_TIMERFD: "tfd", fdinfo.FdTypes_MEMFD: "memfd", fdinfo.FdTypes_PIDFD: "pidfd",
}

// oneKind wants an open file to be what its type says, and nothing beside it.
func oneKind(e *fdinfo.FileEntry) error {
	want, known := fieldOf[e.GetType()]
	if !known {
		return errors.New("an open file of kind " + e.GetType().String())
	}
	has := false
	var err error
	e.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if f.Kind() != protoreflect.MessageKind {
			return true
		}
		if f.Name() != want {
			err = fmt.Errorf("an open file of kind %s that is also %s", e.GetType(), f.Name())
			return false
		}
		has = true
		return true
	})
	if err == nil && !has {
		err = fmt.Errorf("an open file of kind %s that says no more of it", e.GetType())
	}
	return err
}

// external is the flag of a socket that is none of the container's. Source: CRIU 4.2, criu/sk-unix.c, USK_EXTERN.
const external = 1

// mostPriority is the highest SO_PRIORITY that a process may set without a capability. Source: socket(7).
const mostPriority = 6

// lease is the flag of a lease in the image of file locks. Source: Linux, include/linux/filelock.h.
const lease = 32

// locks requires CAP_LEASE for file leases. CRIU takes a lease as root, also of another user's file, and the lease delays each process that opens the file. Other kinds of locks need no
// capability: a process may lock any file that it has open.
func (r *imageReviewer) locks() error {
	const leases = 28 // CAP_LEASE
	return each(r.images, "filelocks.img", func(e *filelock.FileLockEntry) error {
		if e.GetFlag()&lease != 0 && !r.granted[leases] {
			r.ask(Capabilities, "a lease of a file, for which the container was not to have CAP_LEASE")
		}
		return nil
	})
}

// privileged asks for the capability that opening such a file needs: CRIU opens it as root.
func (r *imageReviewer) privileged(e *fdinfo.FileEntry) {
	const searchDAC, netAdmin, netRaw, sysAdmin = 2, 12, 13, 21 // linux/capability.h
	need := func(c uint, what string) {
		if !r.granted[c] {
			r.ask(Capabilities, "%s, open in a process, for which the container was not to have %s", what, cap.Known()[c])
		}
	}
	if e.GetTunf() != nil {
		need(netAdmin, "a tun device")
	}
	if e.GetPsk() != nil {
		need(netRaw, "a packet socket")
	}
	if e.GetIsk().GetType() == unix.SOCK_RAW {
		need(netRaw, "a raw socket")
	}
	if e.GetFfy() != nil {
		need(sysAdmin, "a fanotify group")
	}
	for _, wd := range e.GetIfy().GetWd() {
		if wd.GetFHandle().GetPath() == "" {
			need(searchDAC, "a watch of a file without a name")
		}
	}
	for _, o := range []*skopts.SkOptsEntry{e.GetIsk().GetOpts(), e.GetUsk().GetOpts(), e.GetNlsk().GetOpts(), e.GetPsk().GetOpts()} {
		if o.GetSoMark() != 0 {
			need(netAdmin, "a socket with a mark")
		}
		// Source: socket(7), SO_PRIORITY. The host's queues go by it.
		if o.GetSoPriority() > mostPriority && !r.granted[netAdmin] {
			need(netRaw, fmt.Sprintf("a socket of priority %d", o.GetSoPriority()))
		}
	}
	if s := e.GetUsk(); s.GetUflags()&external != 0 && !makesAny(r.spec) {
		r.ask(Privileges, "a connection to the socket %q of the host's, which CRIU makes as root, and the container's user is not", s.GetName())
	}
	if s := e.GetNlsk(); len(s.GetGroups()) > 0 && !slices.Contains([]uint32{unix.NETLINK_ROUTE, unix.NETLINK_KOBJECT_UEVENT, unix.NETLINK_GENERIC}, s.GetProtocol()) {
		need(netAdmin, fmt.Sprintf("a netlink socket of protocol %d that hears groups", s.GetProtocol()))
	}
}
