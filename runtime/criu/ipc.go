package criu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	ipcmsg "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-msg"
	ipcsem "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-sem"
	ipcshm "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-shm"
	ipcvar "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-var"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/failure"
)

// IPCRule is the rule that refuses a snapshot with a System V object whose id or key an object in the pod already has.
const IPCRule = "ipc-objects"

// IPC is an IPC namespace that a restored container shares with others, such as its pod's, and the System V objects that CRIU makes in it. CRIU dumps the objects and sysctls of the whole
// namespace and restores them all. Source: CRIU 4.1.1, criu/ipc_ns.c, prepare_ipc_ns.
type IPC struct {
	path    string // of the namespace
	objects []ipcObject
}

// ipcObject is a System V object.
type ipcObject struct {
	kind ipcKind
	id   int
	key  int32
	user int // the process that has made it, or has used it last; 0: not known
}

// ipcKind is what kind of object it is: its name in /proc/sysvipc.
type ipcKind string

const (
	sharedMemory ipcKind = "shm"
	messages     ipcKind = "msg"
	semaphores   ipcKind = "sem"
)

// JoinIPC prepares the images in dir for a restore into the IPC namespace at path. It writes that namespace's sysctls into them, so that CRIU changes none. It refuses images with a System V
// object whose id or key is taken there: the error has the rule [IPCRule].
func JoinIPC(dir, path string) (*IPC, error) {
	i := &IPC{path: path}
	for kind, read := range map[ipcKind]func([]byte) ([]ipcObject, error){sharedMemory: readShm, messages: readMsg, semaphores: readSem} {
		files, err := filepath.Glob(filepath.Join(dir, "ipcns-"+string(kind)+"-*.img"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			var found []ipcObject
			data, err := os.ReadFile(file)
			if err == nil {
				found, err = read(data)
			}
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", filepath.Base(file), err)
			}
			i.objects = append(i.objects, found...)
		}
	}
	err := changeRecords(dir, "ipcns-var-*.img", func(all []*ipcvar.IpcVarEntry) error {
		return InNamespace(unix.CLONE_NEWIPC, path, func() (err error) {
			for n := range all {
				if all[n], err = readSysctls(); err != nil {
					return fmt.Errorf("read the sysctls of the IPC namespace %s: %w", path, err)
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	there, err := i.there()
	if err != nil {
		return nil, err
	}
	for _, o := range i.objects {
		if n := slices.IndexFunc(there, o.collides); n >= 0 {
			return nil, failure.New(errdefs.ErrFailedPrecondition, "restore it into a new pod, before its other containers have made such objects (ipcs lists them)",
				"%s: the snapshot has a System V object %s, and the pod has %s already", IPCRule, o, there[n]).By(IPCRule)
		}
	}
	return i, nil
}

func (o ipcObject) String() string {
	return fmt.Sprintf("%s %d (key %#x)", o.kind, o.id, uint32(o.key))
}

// ipcSlots is how many objects of a kind there may be: ids that are equal modulo that have one place. Source: Linux, ipc/util.h, IPCMNI.
const ipcSlots = 32768

// collides reports whether CRIU cannot make an object with its id and key because of another.
func (o ipcObject) collides(other ipcObject) bool {
	return o.kind == other.kind && (o.id%ipcSlots == other.id%ipcSlots || o.key == other.key && o.key != ipcPrivate)
}

// ipcPrivate is the key of an object without one (IPC_PRIVATE).
const ipcPrivate = 0

// Undo removes the objects that CRIU has made, after a failed restore. ended tells whether a process has ended. An object stays unless the process that used it last is known and has ended. A nil
// IPC has no objects.
func (i *IPC) Undo(ended func(pid int) bool) error {
	if i == nil || len(i.objects) == 0 {
		return nil
	}
	there, err := i.there()
	if err != nil {
		return err
	}
	return InNamespace(unix.CLONE_NEWIPC, i.path, func() error {
		var failed []error
		for _, o := range there {
			made := slices.ContainsFunc(i.objects, func(own ipcObject) bool { return own.kind == o.kind && own.id == o.id && own.key == o.key })
			if made && o.user != 0 && ended(o.user) {
				failed = append(failed, o.remove())
			}
		}
		return errors.Join(failed...)
	})
}

// there lists the objects of the namespace.
func (i *IPC) there() (all []ipcObject, err error) {
	if len(i.objects) == 0 {
		return nil, nil
	}
	err = InNamespace(unix.CLONE_NEWIPC, i.path, func() error {
		for kind, column := range map[ipcKind]int{sharedMemory: 4, messages: 5, semaphores: -1} { // of the process
			found, err := listIPC(kind, column)
			if err != nil {
				return err
			}
			all = append(all, found...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the objects of the IPC namespace %s: %w", i.path, err)
	}
	return all, nil
}

// listIPC lists the objects of one kind in the thread's namespace. Source: Linux, ipc/shm.c, ipc/msg.c and ipc/sem.c, the lines of /proc/sysvipc.
func listIPC(kind ipcKind, column int) (all []ipcObject, err error) {
	data, err := os.ReadFile(filepath.Join("/proc/sysvipc", string(kind)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has none
	}
	if err != nil {
		return nil, err
	}
	_, lines, _ := strings.Cut(string(data), "\n")
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) < 6 {
			return nil, fmt.Errorf("a line of /proc/sysvipc/%s is %q: %w", kind, line, errdefs.ErrInternal)
		}
		key, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			return nil, err
		}
		o := ipcObject{kind: kind, key: int32(key)}
		if o.id, err = strconv.Atoi(words[1]); err != nil {
			return nil, err
		}
		if column < 0 {
			const getPID = 11 // GETPID of the first semaphore. Source: Linux, include/uapi/linux/sem.h.
			pid, _, _ := unix.Syscall6(unix.SYS_SEMCTL, uintptr(o.id), 0, getPID, 0, 0, 0)
			o.user = max(0, int(int32(pid)))
		} else if o.user, err = strconv.Atoi(words[column]); err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// remove removes an object of the thread's namespace.
func (o ipcObject) remove() error {
	var errno unix.Errno
	switch o.kind {
	case sharedMemory:
		_, _, errno = unix.Syscall(unix.SYS_SHMCTL, uintptr(o.id), unix.IPC_RMID, 0)
	case messages:
		_, _, errno = unix.Syscall(unix.SYS_MSGCTL, uintptr(o.id), unix.IPC_RMID, 0)
	case semaphores:
		_, _, errno = unix.Syscall6(unix.SYS_SEMCTL, uintptr(o.id), 0, unix.IPC_RMID, 0, 0, 0)
	}
	if errno != 0 && errno != unix.EINVAL && errno != unix.EIDRM { // it is gone
		return fmt.Errorf("remove the System V object %s: %w", o, errno)
	}
	return nil
}

// readSysctls reads those sysctls of the thread's namespace that CRIU restores. It leaves out the ids for the next objects (kernel.*_next_id).
func readSysctls() (*ipcvar.IpcVarEntry, error) {
	v := &ipcvar.IpcVarEntry{SemCtls: make([]uint32, 4)}
	small := map[string]**uint32{
		"kernel/msgmax": &v.MsgCtlmax, "kernel/msgmnb": &v.MsgCtlmnb, "kernel/msgmni": &v.MsgCtlmni, "kernel/auto_msgmni": &v.AutoMsgmni, "kernel/shmmni": &v.ShmCtlmni,
		"kernel/shm_rmid_forced": &v.ShmRmidForced, "fs/mqueue/queues_max": &v.MqQueuesMax, "fs/mqueue/msg_max": &v.MqMsgMax, "fs/mqueue/msgsize_max": &v.MqMsgsizeMax,
		"fs/mqueue/msg_default": &v.MqMsgDefault, "fs/mqueue/msgsize_default": &v.MqMsgsizeDefault,
	}
	for name, to := range small {
		*to = new(uint32)
		if err := readSysctl(name, *to); err != nil {
			return nil, err
		}
	}
	v.ShmCtlmax, v.ShmCtlall = new(uint64), new(uint64)
	err := errors.Join(readSysctl("kernel/shmmax", v.ShmCtlmax), readSysctl("kernel/shmall", v.ShmCtlall),
		readSysctl("kernel/sem", &v.SemCtls[0], &v.SemCtls[1], &v.SemCtls[2], &v.SemCtls[3]))
	return v, err
}

func readSysctl(name string, to ...any) error {
	data, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, "fs/mqueue/") {
		return nil // the kernel has no such queues, and CRIU looks for that
	}
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(data), to...); err != nil {
		return fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return nil
}

// descriptor is what the images have of an object of any kind.
type descriptor interface {
	GetId() uint32
	GetKey() uint32
}

func objectOf(kind ipcKind, d descriptor) ipcObject {
	return ipcObject{kind: kind, id: int(int32(d.GetId())), key: int32(d.GetKey())}
}

// readShm reads an image of shared memory. What the memory holds is in other images, or, as old versions of CRIU have it, follows in words of 4 bytes.
func readShm(image []byte) ([]ipcObject, error) {
	return readObjects(image, &ipcshm.IpcShmEntry{}, func(in *bytes.Reader, e *ipcshm.IpcShmEntry) (ipcObject, error) {
		var err error
		if !e.GetInPagemaps() {
			err = skip(in, e.GetSize(), 4)
		}
		return objectOf(sharedMemory, e.GetDesc()), err
	})
}

// readSem reads an image of semaphores: each set is followed by values of 2 bytes, in words of 8.
func readSem(image []byte) ([]ipcObject, error) {
	return readObjects(image, &ipcsem.IpcSemEntry{}, func(in *bytes.Reader, e *ipcsem.IpcSemEntry) (ipcObject, error) {
		return objectOf(semaphores, e.GetDesc()), skip(in, 2*uint64(e.GetNsems()), 8)
	})
}

// readMsg reads an image of message queues: each is followed by its messages, and each of these by its text in words of 8 bytes.
func readMsg(image []byte) ([]ipcObject, error) {
	return readObjects(image, &ipcmsg.IpcMsgEntry{}, func(in *bytes.Reader, e *ipcmsg.IpcMsgEntry) (ipcObject, error) {
		for range e.GetQnum() {
			var m ipcmsg.IpcMsg
			if err := readRecord(in, &m); err != nil {
				return ipcObject{}, unexpectedEnd(err)
			}
			if err := skip(in, uint64(m.GetMsize()), 8); err != nil {
				return ipcObject{}, err
			}
		}
		return objectOf(messages, e.GetDesc()), nil
	})
}

// readObjects reads records to the end of an image, each with what follows it.
func readObjects[E proto.Message](image []byte, entry E, rest func(*bytes.Reader, E) (ipcObject, error)) (all []ipcObject, err error) {
	in := bytes.NewReader(image)
	const head = 8 // two magic numbers
	if err := skip(in, head, 1); err != nil {
		return nil, errors.Join(err, errdefs.ErrDataLoss)
	}
	for {
		switch err := readRecord(in, entry); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, errors.Join(err, errdefs.ErrDataLoss)
		}
		o, err := rest(in, entry)
		if err != nil {
			return nil, errors.Join(err, errdefs.ErrDataLoss)
		}
		all = append(all, o)
	}
}

// maxRecord is more than a record of these images has.
const maxRecord = 1 << 10

func readRecord(in *bytes.Reader, into proto.Message) error {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n > maxRecord {
		return fmt.Errorf("a record has %d bytes", n)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(in, data); err != nil {
		return unexpectedEnd(err)
	}
	return proto.Unmarshal(data, into)
}

// skip passes over bytes that are filled up to a multiple of words.
func skip(in *bytes.Reader, bytes, word uint64) error {
	_, err := io.CopyN(io.Discard, in, int64((bytes+word-1)/word*word))
	return unexpectedEnd(err)
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
