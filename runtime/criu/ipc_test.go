package criu

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ipcdesc "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-desc"
	ipcmsg "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-msg"
	ipcsem "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-sem"
	ipcshm "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-shm"
	ipcvar "github.com/checkpoint-restore/go-criu/v8/crit/images/ipc-var"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// ipcImage is an image of records and of what follows them.
func ipcImage(t *testing.T, parts ...any) []byte {
	t.Helper()
	image := []byte("magicnum")
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			image = append(image, make([]byte, p)...)
		case proto.Message:
			packed, err := proto.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			image = append(binary.LittleEndian.AppendUint32(image, uint32(len(packed))), packed...)
		}
	}
	return image
}

func describe(id, key uint32) *ipcdesc.IpcDescEntry {
	zero := new(uint32)
	return &ipcdesc.IpcDescEntry{Id: &id, Key: &key, Uid: zero, Gid: zero, Cuid: zero, Cgid: zero, Mode: zero}
}

func TestReadIPC(t *testing.T) {
	object := func(kind ipcKind, id int, key int32) ipcObject { return ipcObject{kind: kind, id: id, key: key} }
	three := proto.Uint32(3)
	for name, test := range map[string]struct {
		read  func([]byte) ([]ipcObject, error)
		image []byte
		want  []ipcObject
	}{
		"memory": {readShm, ipcImage(t, &ipcshm.IpcShmEntry{Desc: describe(0, 0xffffffff), Size: proto.Uint64(5), InPagemaps: proto.Bool(true)}, &ipcshm.IpcShmEntry{Desc: describe(32769, 0), Size: proto.Uint64(5)}, 8),
			[]ipcObject{object(sharedMemory, 0, -1), object(sharedMemory, 32769, 0)}},
		"semaphores": {readSem, ipcImage(t, &ipcsem.IpcSemEntry{Desc: describe(1, 2), Nsems: three}, 8, &ipcsem.IpcSemEntry{Desc: describe(2, 3), Nsems: three}, 8),
			[]ipcObject{object(semaphores, 1, 2), object(semaphores, 2, 3)}},
		"messages": {readMsg, ipcImage(t, &ipcmsg.IpcMsgEntry{Desc: describe(1, 2), Qbytes: three, Qnum: proto.Uint32(2)}, &ipcmsg.IpcMsg{Mtype: proto.Uint64(1), Msize: three}, 8,
			&ipcmsg.IpcMsg{Mtype: proto.Uint64(1), Msize: proto.Uint32(9)}, 16, &ipcmsg.IpcMsgEntry{Desc: describe(3, 4), Qbytes: three, Qnum: new(uint32)}),
			[]ipcObject{object(messages, 1, 2), object(messages, 3, 4)}},
		"nothing": {readShm, ipcImage(t), nil},
	} {
		got, err := test.read(test.image)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		for n := range test.image {
			if some, err := test.read(test.image[:n]); err == nil && len(some) >= len(got) && len(got) > 0 || err != nil && !errdefs.IsDataLoss(err) {
				t.Errorf("%d bytes of %s: %v, %v", n, name, some, err)
			}
		}
	}
}

func TestCollides(t *testing.T) {
	one := ipcObject{kind: sharedMemory, id: 1, key: 5}
	for name, test := range map[string]struct {
		other ipcObject
		want  bool
	}{
		"its id":       {ipcObject{kind: sharedMemory, id: 1, key: 6}, true},
		"its place":    {ipcObject{kind: sharedMemory, id: 1 + 3*ipcSlots}, true},
		"its key":      {ipcObject{kind: sharedMemory, id: 2, key: 5}, true},
		"neither":      {ipcObject{kind: sharedMemory, id: 2, key: 6}, false},
		"another kind": {ipcObject{kind: messages, id: 1, key: 5}, false},
	} {
		if got := one.collides(test.other); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if private := (ipcObject{kind: messages, id: 1}); private.collides(ipcObject{kind: messages, id: 2}) {
		t.Error("objects without a key have one key")
	}
}

// TestJoinIPC joins a namespace of the test's own, whose sysctls the images get, and whose objects keep theirs from it. What CRIU has made is removed when its processes have ended.
func TestJoinIPC(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes namespaces")
	}
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := InNamespace(unix.CLONE_NEWIPC, "/proc/self/ns/ipc", func() error {
		if err := unix.Unshare(unix.CLONE_NEWIPC); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/ipc", path, "", unix.MS_BIND, "")
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, 0); err != nil {
			t.Error(err)
		}
	})
	inside := func(do func() error) {
		t.Helper()
		if err := InNamespace(unix.CLONE_NEWIPC, path, do); err != nil {
			t.Fatal(err)
		}
	}
	var was *ipcvar.IpcVarEntry
	inside(func() (err error) {
		was, err = readSysctls()
		return errors.Join(err, os.WriteFile("/proc/sys/kernel/shmmax", []byte("222222"), 0))
	})
	was.ShmNextId = proto.Uint32(3)
	dir := t.TempDir()
	write := func(name string, image []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), image, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ipcns-var-9.img", ipcImage(t, was))
	joined, err := JoinIPC(dir, path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "ipcns-var-9.img"))
	if err != nil {
		t.Fatal(err)
	}
	var v ipcvar.IpcVarEntry
	if err := proto.Unmarshal(data[12:], &v); err != nil || v.GetShmCtlmax() != 222222 || len(v.GetSemCtls()) != 4 || v.GetSemCtls()[3] == 0 || v.ShmNextId != nil || string(data[:8]) != "magicnum" {
		t.Errorf("the sysctls are %v, %v", &v, err)
	}
	if err := joined.Undo(func(int) bool { return true }); err != nil {
		t.Error(err)
	}
	write("ipcns-shm-9.img", ipcImage(t, &ipcshm.IpcShmEntry{Desc: describe(0, 7), Size: proto.Uint64(5), InPagemaps: proto.Bool(true)}))
	if joined, err = JoinIPC(dir, path); err != nil {
		t.Fatal(err)
	}
	inside(func() error {
		for key := 7; key < 9; key++ { // the second is another's
			if _, err := unix.SysvShmGet(key, 5, unix.IPC_CREAT|0o600); err != nil {
				return err
			}
		}
		return nil
	})
	if _, err := JoinIPC(dir, path); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), IPCRule+": ") || !strings.Contains(err.Error(), "shm 0 (key 0x7)") {
		t.Errorf("an object is there: %v", err)
	}
	left := func(want int) {
		t.Helper()
		there, err := joined.there()
		if err != nil || len(there) != want {
			t.Errorf("objects %v, %v", there, err)
		}
	}
	if err := joined.Undo(func(pid int) bool { return pid != os.Getpid() }); err != nil {
		t.Error(err)
	}
	left(2)
	if err := joined.Undo(func(pid int) bool { return pid == os.Getpid() }); err != nil {
		t.Error(err)
	}
	left(1)
}
