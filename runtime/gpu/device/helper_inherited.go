package device

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DeviceNodes begins the paths of the driver's device nodes.
const DeviceNodes = "/dev/nvidia"

// mapping is one of a process's, of a device node of the driver. Source: proc_pid_maps(5).
type mapping struct {
	start, end, offset uint64
	prot               int // PROT_READ and others, of mmap(2)
	node               uint64
}

// deviceFiles are what a process has of the driver's device nodes.
type deviceFiles struct {
	mappings    []mapping
	descriptors []int
	nvml        bool // it has loaded NVML, which opens nodes without CUDA
}

func (f deviceFiles) none() bool { return len(f.mappings) == 0 && len(f.descriptors) == 0 }

// deviceFilesOf reads what a process has of device nodes whose paths begin so. A process that has ended has nothing.
func deviceFilesOf(pid int, prefix string) (f deviceFiles, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	if f.mappings, f.nvml, err = deviceMappings(dir, prefix); err != nil {
		return deviceFiles{}, passed(err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return deviceFiles{}, passed(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, "fd", e.Name())
		target, err := os.Readlink(path)
		if n, bad := strconv.Atoi(e.Name()); err == nil && bad == nil && strings.HasPrefix(target, prefix) && isDevice(path) {
			f.descriptors = append(f.descriptors, n)
		}
	}
	return f, nil
}

// passed is nil where the error is that the process has ended.
func passed(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fmt.Errorf("look at device files: %w", err)
}

// isDevice reports whether a path leads to a character device.
func isDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeCharDevice != 0
}

// deviceMappings reads those of a process whose directory of /proc is dir, and whether it has loaded NVML.
func deviceMappings(dir, prefix string) (found []mapping, nvml bool, err error) {
	file, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			continue
		}
		nvml = nvml || strings.Contains(fields[5], "/libnvidia-ml.so")
		if !strings.HasPrefix(fields[5], prefix) {
			continue
		}
		m, err := parseMapping(fields)
		if err != nil {
			return nil, false, err
		}
		if isDevice(filepath.Join(dir, "map_files", fmt.Sprintf("%x-%x", m.start, m.end))) {
			found = append(found, m)
		}
	}
	return found, nvml, lines.Err()
}

// parseMapping reads the first five columns of a line of /proc/PID/maps.
func parseMapping(fields []string) (m mapping, err error) {
	if _, err := fmt.Sscanf(fields[0]+" "+fields[2]+" "+fields[4], "%x-%x %x %d", &m.start, &m.end, &m.offset, &m.node); err != nil {
		return m, fmt.Errorf("read mapping %q: %w", strings.Join(fields, " "), err)
	}
	for i, prot := range []int{unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC} {
		if fields[1][i] != '-' {
			m.prot |= prot
		}
	}
	return m, nil
}

// inherits reports whether a process was forked from the holder of a context, and has run no other program since: they share an open device file, or both have a mapping of one at the same address.
// Where a process shares its address space or its table of descriptors with the holder, as after vfork(2), what is there is the holder's: it goes from f.
func inherits(pid int, f *deviceFiles, holder int, held deviceFiles) bool {
	if !sameProgram(pid, holder) {
		return false
	}
	if same(pid, holder, kcmpVM, 0, 0) {
		f.mappings = nil
	}
	if same(pid, holder, kcmpFiles, 0, 0) {
		f.descriptors = nil
	}
	return slices.ContainsFunc(f.mappings, func(m mapping) bool { return slices.Contains(held.mappings, m) }) ||
		slices.ContainsFunc(f.descriptors, func(n int) bool { return sharesFile(pid, n, holder, held.descriptors) })
}

// sameProgram reports whether two processes come from one execve(2) by forks alone: the auxiliary vector has addresses that the kernel has chosen at random. Memory is also shared by descriptors
// of device nodes, which are passed to other programs: those that have them by that are not forked. Source: getauxval(3), AT_RANDOM.
func sameProgram(pid, other int) bool {
	one, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "auxv"))
	if err != nil || len(one) == 0 {
		return false
	}
	two, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(other), "auxv"))
	return err == nil && bytes.Equal(one, two)
}

// sharesFile reports whether a descriptor of a process is the same open file as one of a holder's.
func sharesFile(pid, n, holder int, held []int) bool {
	if slices.Contains(held, n) && same(pid, holder, kcmpFile, n, n) { // as after fork
		return true
	}
	return slices.ContainsFunc(held, func(other int) bool { return same(pid, holder, kcmpFile, n, other) })
}

// What kcmp(2) compares. Source: linux/kcmp.h.
const (
	kcmpFile  = 0
	kcmpVM    = 1
	kcmpFiles = 2
)

// same reports whether two processes have a resource together.
func same(pid, other, kind, n, m int) bool {
	r, _, code := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(other), uintptr(kind), uintptr(n), uintptr(m), 0)
	return code == 0 && r == 0
}

// disown has processes without a context give up what they have inherited of device files from the holders of contexts, and returns how many did.
//
// A child of fork(2) has copies of some 30 mappings and descriptors of the driver's device nodes, and can use none of them: CUDA refuses every call after a fork, for ever. The driver's
// checkpoint does not take them from it, and CRIU cannot dump them. In their place come private memory with the same protection and an eventfd, so that addresses and numbers stay taken: the driver's library may
// unmap and close them when the child ends. Which are inherited is known by comparison with the holders, which must be stopped: they have all of theirs still, and fork no more.
func (s *stopper) disown(holders, pids []int) (changed int, err error) {
	held := map[int]deviceFiles{}
	for _, pid := range holders {
		if held[pid], err = deviceFilesOf(pid, s.prefix); err != nil {
			return 0, err
		}
	}
	for _, pid := range pids {
		var done bool
		s.do(func() { done, err = s.disownOne(pid, held) })
		if err != nil && !ends(pid) {
			return changed, fmt.Errorf("take inherited device files from process %d: %w", pid, err)
		}
		if done {
			changed++
		}
	}
	return changed, nil
}

// disownOne is disown for one process, by the tracing thread. It reports whether the process had inherited any.
func (s *stopper) disownOne(pid int, held map[int]deviceFiles) (done bool, err error) {
	if f, err := s.inherited(pid, held); err != nil || f.none() {
		return false, err
	}
	defer s.free(pid)
	if err := s.still(pid); err != nil {
		return false, err
	}
	f, err := s.inherited(pid, held) // again, now that it stands still: it may have run another program
	if err != nil || f.none() {
		return false, err
	}
	return true, s.exchange(pid, f)
}

// inherited returns what a process has inherited of device files. A child that has loaded NVML may have opened nodes by itself, and mapped one where a holder has, since they load alike: it is a child where it shares
// a descriptor with a holder, and of what it has only that counts which the holder has, too.
func (s *stopper) inherited(pid int, held map[int]deviceFiles) (deviceFiles, error) {
	files, err := deviceFilesOf(pid, s.prefix)
	if err != nil || files.none() {
		return deviceFiles{}, err
	}
	forked, shared := false, deviceFiles{}
	for holder, h := range held {
		if !inherits(pid, &files, holder, h) {
			continue
		}
		forked = true
		before := len(shared.descriptors)
		for _, n := range files.descriptors {
			if !slices.Contains(shared.descriptors, n) && sharesFile(pid, n, holder, h.descriptors) {
				shared.descriptors = append(shared.descriptors, n)
			}
		}
		for _, m := range files.mappings {
			if len(shared.descriptors) > before && slices.Contains(h.mappings, m) {
				shared.mappings = append(shared.mappings, m)
			}
		}
	}
	switch {
	case !forked:
		return deviceFiles{}, nil
	case files.nvml:
		return shared, nil
	}
	return files, nil
}

// still stops all threads of a process, and waits until they stand still.
func (s *stopper) still(pid int) error {
	if s.stopped[pid] == nil {
		s.stopped[pid] = map[int]bool{}
	}
	return s.await(pid)
}

// exchange puts other things in the place of device files of a process that stands still.
func (s *stopper) exchange(pid int, files deviceFiles) error {
	for _, tid := range threads(pid) { // the first may have ended before the others
		if !s.stopped[pid][tid] || dead(tid) {
			continue
		}
		r, err := inject(pid, tid)
		if err != nil {
			return err
		}
		return errors.Join(r.giveUp(files), r.end())
	}
	return unix.ESRCH
}

// ends reports whether a process has ended, or ends within a second. One that is killed while it stands still fails our calls (ESRCH) before the kernel marks its threads as ending: they must run first, which takes a while
// on a machine that is busy.
func ends(pid int) bool {
	for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(threads(pid), func(tid int) bool { return !dead(tid) }) {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// giveUp puts other things in the place of device files.
func (r *injection) giveUp(f deviceFiles) error {
	for _, m := range f.mappings {
		if _, err := r.call(unix.SYS_MMAP, m.start, m.end-m.start, uint64(m.prot), unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE, ^uint64(0), 0); err != nil {
			return fmt.Errorf("mmap: %w", err)
		}
	}
	if len(f.descriptors) == 0 {
		return nil
	}
	inert, err := r.call(unix.SYS_EVENTFD2, 0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd2: %w", err)
	}
	for _, n := range f.descriptors {
		flags, err := r.call(unix.SYS_FCNTL, uint64(n), unix.F_GETFD)
		if errors.Is(err, unix.EBADF) { // another thread has closed it
			continue
		}
		if err != nil {
			return fmt.Errorf("fcntl: %w", err)
		}
		cloexec := uint64(0)
		if flags&unix.FD_CLOEXEC != 0 {
			cloexec = unix.O_CLOEXEC
		}
		if _, err := r.call(unix.SYS_DUP3, inert, uint64(n), cloexec); err != nil {
			return fmt.Errorf("dup3: %w", err)
		}
	}
	if _, err := r.call(unix.SYS_CLOSE, inert); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
