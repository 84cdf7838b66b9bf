package criu

import (
	"errors"
	"os"
	"runtime"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// NamespaceIn returns the path of the namespace of a kind that a specification has, empty for a new one, and whether it has one.
func NamespaceIn(spec *specs.Spec, kind specs.LinuxNamespaceType) (path string, has bool) {
	if spec.Linux != nil {
		for _, n := range spec.Linux.Namespaces {
			if n.Type == kind {
				return n.Path, true
			}
		}
	}
	return "", false
}

// names are those of the kinds of namespaces in /proc/PID/ns.
var names = map[int]string{unix.CLONE_NEWIPC: "ipc", unix.CLONE_NEWNS: "mnt", unix.CLONE_NEWUTS: "uts", unix.CLONE_NEWNET: "net"}

// visits are made by one thread, one after the other. The thread never ends: the kernel kills a process that was started with Pdeathsig when the thread that started it ends, and containerd
// starts runc so.
var visits = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go visitor(c)
	return c
})

func visitor(c <-chan func()) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() { // the first thread, which /proc/self shows, stays at home
		go visitor(c)
		select {}
	}
	for visit := range c {
		visit()
	}
}

// InNamespace calls do in the namespace at path, whose kind is unix.CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWUTS or CLONE_NEWNET. It gives do's error, or that of entering or leaving the namespace. What do starts
// is in the namespace. do must not call Do.
func InNamespace(kind int, path string, do func() error) error {
	there, err := os.Open(path)
	if err != nil {
		return err
	}
	defer there.Close()
	here, err := os.Open("/proc/self/ns/" + names[kind])
	if err != nil {
		return err
	}
	defer here.Close()
	done := make(chan error)
	visits() <- func() {
		done <- visit(kind, int(there.Fd()), int(here.Fd()), do)
	}
	return <-done
}

// visit is Do, on the thread that makes visits.
func visit(kind, there, here int, do func() error) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // root and working directory of the thread: a mount namespace changes them
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(there, kind); err != nil {
		return os.NewSyscallError("setns", err)
	}
	return errors.Join(do(), os.NewSyscallError("leave the namespace: setns", unix.Setns(here, kind)))
}
