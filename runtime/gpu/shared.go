package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// Memory that processes of the container share by descriptors goes through a checkpoint as other memory does, by its owner; [Engine.part] takes the sharing away ahead of it, and
// [together] puts it back. preload/shared.h has the library's part.

// passed is a descriptor of memory, and the process that has it.
type passed struct {
	library.Passed
	by *given
}

// match finds whose memory each process has imported, for the record and the way back. All gates are closed, and the owners have their memory.
func (e *Engine) match(ctx context.Context, all []*given) error {
	var exports, imports []passed
	defer func() {
		for _, p := range slices.Concat(exports, imports) {
			p.File.Close()
		}
	}()
	for _, g := range all {
		list, err := g.library.Shared()
		if err != nil && e.hasEnded(ctx, g) {
			return endedError(g.Process)
		}
		if err != nil {
			return err
		}
		g.imports, g.added = nil, nil
		for _, p := range list {
			if p.Import {
				imports = append(imports, passed{p, g})
			} else {
				exports = append(exports, passed{p, g})
			}
		}
	}
	var errs []error
	slices.SortFunc(exports, func(a, b passed) int { return compare(&errs, a.File, b.File) })
	for _, p := range imports {
		i, found := slices.BinarySearchFunc(exports, p, func(a, b passed) int { return compare(&errs, a.File, b.File) })
		if len(errs) == 0 && !found {
			return strangerError(p.by.Process)
		}
		if found {
			p.by.imports = append(p.by.imports, record.GPUImport{Memory: p.Memory, Owner: exports[i].by.Inner, Of: exports[i].Memory, Host: exports[i].Host, Multicast: exports[i].Team > 0})
			p.by.added = append(p.by.added, p.Added)
		}
	}
	if err := errors.Join(errs...); err != nil || len(exports) == 0 {
		return err
	}
	if err := teams(exports, all); err != nil {
		return err
	}
	return e.kept(ctx, exports, imports)
}

// joined looks again for processes that use GPUs, when those that were found share memory and stand still: one that has begun since may have imported some of it, and would go on with what
// that was. It returns what the driver and NVML know by then.
func (e *Engine) joined(ctx context.Context, fresh []cudaProcess) (device.Facts, error) {
	found, _, err := e.discover(ctx)
	if err != nil {
		return device.Facts{}, err
	}
	found = slices.DeleteFunc(found, func(p cudaProcess) bool {
		return slices.ContainsFunc(fresh, func(f cudaProcess) bool { return f.PID == p.PID })
	})
	if len(found) > 0 {
		return device.Facts{}, restlessError(names(found))
	}
	return e.facts(ctx, nil)
}

// compare orders open files, as kcmp(2) does.
func compare(errs *[]error, a, b *os.File) int {
	return order(errs, os.Getpid(), int(a.Fd()), os.Getpid(), int(b.Fd()))
}

// order is kcmp(2) of files of two processes. What has ended is less.
func order(errs *[]error, pid, fd, other, otherFD int) int {
	const file = 0 // KCMP_FILE
	r, _, code := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(other), file, uintptr(fd), uintptr(otherFD), 0)
	switch {
	case code == unix.EBADF || code == unix.ESRCH:
		return -1
	case code != 0:
		*errs = append(*errs, os.NewSyscallError("kcmp", code))
		return -1
	case r == 1:
		return -1
	}
	return min(int(r), 1)
}

// kept refuses a program that has kept a descriptor by which memory goes to others: a process that imports it afterwards would get what the memory was.
func (e *Engine) kept(ctx context.Context, exports, imports []passed) error {
	pids, err := e.PIDs(ctx)
	if err != nil {
		return err
	}
	links := map[string]bool{}
	for _, p := range exports {
		if link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", p.File.Fd())); err == nil {
			links[link] = true
		}
	}
	for _, pid := range pids {
		holds, err := e.holdsAny(pid, links, exports, imports)
		if err != nil {
			return err
		}
		if p, err := e.host().process(pid); holds && err == nil {
			return failure.New(errdefs.ErrFailedPrecondition, "have it close the descriptor when the other process has imported the memory, as NCCL does",
				"save its GPUs: %s has open a descriptor of GPU memory that it shares", p)
		}
	}
	return nil
}

// holdsAny reports whether a process has open one of the files, beside what its library, or that of the process it was forked from, has.
func (e *Engine) holdsAny(pid int, links map[string]bool, exports, imports []passed) (bool, error) {
	entries, err := os.ReadDir(e.host().path(pid, "fd"))
	if err != nil {
		return false, ended(fmt.Errorf("look at descriptors of process %d: %w", pid, gone(err)))
	}
	var errs []error
	for _, entry := range entries {
		link, err := os.Readlink(e.host().path(pid, filepath.Join("fd", entry.Name())))
		n, notNumber := strconv.Atoi(entry.Name())
		if err != nil || notNumber != nil || !links[link] {
			continue
		}
		_, found := slices.BinarySearchFunc(exports, n, func(p passed, n int) int { return order(&errs, os.Getpid(), int(p.File.Fd()), pid, n) })
		if !found || e.ofLibrary(pid, n, exports) || e.ofLibrary(pid, n, imports) {
			continue
		}
		return true, errors.Join(errs...)
	}
	return false, errors.Join(errs...)
}

// ofLibrary reports whether a descriptor is a library's, or inherited from one.
func (e *Engine) ofLibrary(pid, fd int, all []passed) bool {
	return slices.ContainsFunc(all, func(p passed) bool { return p.FD == fd && (p.by.PID == pid || e.host().parent(pid) == p.by.PID) })
}

// teams refuses multicast objects to which processes of the container have not added all devices. Others may have, which are not of the container or have ended: what is bound anew would wait for
// these. Or a process is about to: it may have a descriptor on its way of the object as it was.
func teams(exports []passed, all []*given) error {
	for _, o := range exports {
		if o.Team == 0 {
			continue
		}
		added := o.Added
		for _, g := range all {
			for n, i := range g.imports {
				if i.Multicast && i.Owner == o.by.Inner && i.Of == o.Memory {
					added += g.added[n]
				}
			}
		}
		if added != o.Team {
			return failure.New(errdefs.ErrFailedPrecondition, "try again, if the program is just making it; else have all processes that share it be of the container, and give it up when one ends",
				"save its GPUs: %s has a multicast object of %d GPUs, of which processes of the container have added %d", o.by.Process, o.Team, added)
		}
	}
	return nil
}

// part takes the sharing away in all processes, or in none.
func (e *Engine) part(all []*given) error {
	shares := slices.DeleteFunc(slices.Clone(all), func(g *given) bool { return !g.shares })
	unbind := func(g *given) error {
		g.parted = true
		if !g.casts {
			return nil
		}
		return g.library.Unbind()
	}
	err := each(shares, unbind)
	if err == nil {
		err = each(shares, func(g *given) error {
			g.apart = true
			return g.library.Part()
		})
	}
	if err != nil {
		return errors.Join(err, together(shares))
	}
	return nil
}

// exported is something that others have imported, by the PID of its owner in the container.
type exported struct {
	owner int
	what  library.Shareable
}

func exportOf(i record.GPUImport) exported {
	return exported{i.Owner, library.Shareable{Number: i.Of, Host: i.Host, Multicast: i.Multicast}}
}

// together has processes import again what they had imported, when the owners have it, and bind what they had bound to multicast objects. All that share are in a conversation, with their gates
// closed.
func together(all []*given) error {
	if slices.ContainsFunc(all, func(g *given) bool { return g.apart || g.released }) {
		if err := importAll(all); err != nil {
			return err
		}
		if err := eachOfTeam(all, (*library.Process).Join); err != nil {
			return err
		}
	}
	// A bind waits until all devices are added.
	return eachOfTeam(all, (*library.Process).Bind)
}

// eachOfTeam does something in each process that has multicast objects.
func eachOfTeam(all []*given, f func(*library.Process) error) error {
	return each(all, func(g *given) error {
		if g.library == nil || g.whole {
			return nil
		}
		if b, err := g.library.Books(); err != nil || b.Multicasts == 0 {
			return err
		}
		if err := f(g.library); err != nil {
			return fmt.Errorf("%s: put its multicast objects together: %w", g.Process, err)
		}
		return nil
	})
}

// importAll exports what processes have imported, and imports it.
func importAll(all []*given) error {
	files := map[exported]*os.File{}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, g := range all {
		for _, i := range g.imports {
			of := exportOf(i)
			if g.library == nil && i.Multicast {
				return &checkpoint.LossError{Err: fmt.Errorf("give a multicast object back: %s, which has added its GPU, has ended", g.Process)}
			}
			if g.library == nil || g.whole || files[of] != nil {
				continue
			}
			at := slices.IndexFunc(all, func(g *given) bool { return g.Inner == i.Owner && g.library != nil })
			if at < 0 {
				return &checkpoint.LossError{Err: fmt.Errorf("give shared device memory back: its owner, process %d of the container, has ended", i.Owner)}
			}
			f, err := all[at].library.Export(of.what)
			if err != nil {
				return fmt.Errorf("%s: share its device memory again: %w", all[at].Process, err)
			}
			files[of] = f
		}
	}
	return each(all, func(g *given) error {
		for _, i := range g.imports {
			if g.library == nil || g.whole {
				break
			}
			if err := g.library.Import(i.Memory, i.Multicast, files[exportOf(i)]); err != nil {
				return fmt.Errorf("%s: give it back what it has imported of process %d of the container: %w", g.Process, i.Owner, err)
			}
		}
		return nil
	})
}

// importsNothing refuses to leave a process to the driver that has imported memory: the driver saves it and cannot restore it.
func (g *given) importsNothing() error {
	b, err := g.books()
	if err == nil {
		err = g.drivable()
	}
	if err != nil || b.Imports == 0 {
		return err
	}
	return failure.New(errdefs.ErrFailedPrecondition, "take the snapshot with cryo checkpoint and the engine keeper",
		"save its GPUs: %s has imported GPU memory of another process, which the driver cannot restore", g.Process)
}

// withoutMulticast is a hint.
const withoutMulticast = "have the program make no multicast objects: NCCL_NVLS_ENABLE=0, TORCH_SYMM_MEM_DISABLE_MULTICAST=1"

// drivable refuses to leave a process to the driver for which [given.books] has what the driver does not bring back: its checkpoint never ends with a multicast object, and it loses a process with memory of the host that has a handle or is managed.
func (g *given) drivable() error {
	switch {
	case g.casts:
		return failure.New(errdefs.ErrFailedPrecondition, "take the snapshot with cryo checkpoint and the engine keeper, or "+withoutMulticast,
			"save its GPUs: %s has a multicast object, with which the driver's checkpoint does not end", g.Process)
	case g.hosts:
		return failure.New(errdefs.ErrFailedPrecondition, "take the snapshot with cryo checkpoint and the engine keeper, and see that the GPU has 1 GiB free for that",
			"save its GPUs: the GPUs of %s use memory of the host (cuMemCreate, or managed memory), and the driver would lose the process", g.Process)
	}
	return nil
}

// strangerError returns the error that a process has memory whose owner does not belong to the container, or has freed it.
func strangerError(p Process) error {
	return failure.New(errdefs.ErrFailedPrecondition, "have the owner keep its memory as long as others use it, and share GPU memory within a container only",
		"save its GPUs: %s has imported GPU memory that no process of the container has", p)
}
