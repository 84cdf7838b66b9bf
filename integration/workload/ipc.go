package main

import (
	"bytes"
	"flag"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// systemV is System V IPC objects of all kinds with one key: a segment that nobody has attached, a queue with a message, a set of semaphores.
type systemV struct {
	shm, msg, sem int
	content       []byte
}

// Commands of semctl and a flag of msgrcv. Source: Linux, include/uapi/linux/sem.h and msg.h.
const (
	getValue  = 12
	setValue  = 16
	copyFirst = 0o40000
)

// semaphoreValue is that of the last semaphore of the set.
const semaphoreValue = 7

// message is a struct msgbuf.
type message struct {
	kind int64
	text [16]byte
}

func startSystemV(flags *flag.FlagSet, args []string) (workload, error) {
	key := flags.Int("key", 0x6372, "key of all objects")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	v := &systemV{content: make([]byte, 16<<10)}
	_, _ = newRandom(uint64(*key)).Read(v.content) // never fails
	how := uintptr(unix.IPC_CREAT | unix.IPC_EXCL | 0o600)
	for _, object := range []struct {
		id              *int
		call, size, how uintptr
	}{{&v.shm, unix.SYS_SHMGET, uintptr(len(v.content)), how}, {&v.msg, unix.SYS_MSGGET, how, 0}, {&v.sem, unix.SYS_SEMGET, 2, how}} {
		id, _, errno := unix.Syscall(object.call, uintptr(*key), object.size, object.how)
		if errno != 0 {
			return nil, fmt.Errorf("make objects with the key %#x: %w", *key, errno)
		}
		*object.id = int(id)
	}
	if err := v.inSegment(func(b []byte) { copy(b, v.content) }); err != nil {
		return nil, err
	}
	m := message{kind: 1}
	copy(m.text[:], v.content)
	if _, _, errno := unix.Syscall6(unix.SYS_MSGSND, uintptr(v.msg), uintptr(unsafe.Pointer(&m)), uintptr(len(m.text)), 0, 0, 0); errno != 0 {
		return nil, fmt.Errorf("send a message: %w", errno)
	}
	if _, _, errno := unix.Syscall6(unix.SYS_SEMCTL, uintptr(v.sem), 1, setValue, semaphoreValue, 0, 0); errno != 0 {
		return nil, fmt.Errorf("set a semaphore: %w", errno)
	}
	return v, nil
}

// inSegment calls do with the segment.
func (v *systemV) inSegment(do func([]byte)) error {
	b, err := unix.SysvShmAttach(v.shm, 0, 0)
	if err != nil {
		return fmt.Errorf("attach shared memory: %w", err)
	}
	do(b)
	return unix.SysvShmDetach(b)
}

func (v *systemV) Check() (map[string]any, error) {
	state := map[string]any{"shm": v.shm, "msg": v.msg, "sem": v.sem}
	same := false
	if err := v.inSegment(func(b []byte) { same = bytes.Equal(b, v.content) }); err != nil || !same {
		return state, fmt.Errorf("shared memory has other content (%v)", err)
	}
	var m message
	_, _, errno := unix.Syscall6(unix.SYS_MSGRCV, uintptr(v.msg), uintptr(unsafe.Pointer(&m)), uintptr(len(m.text)), 0, copyFirst|unix.IPC_NOWAIT, 0)
	if errno != 0 || !bytes.Equal(m.text[:], v.content[:len(m.text)]) {
		return state, fmt.Errorf("the message is %q (%v)", m.text, errno)
	}
	if value, _, errno := unix.Syscall6(unix.SYS_SEMCTL, uintptr(v.sem), 1, getValue, 0, 0, 0); errno != 0 || value != semaphoreValue {
		return state, fmt.Errorf("the semaphore is %d (%v)", value, errno)
	}
	return state, nil
}
