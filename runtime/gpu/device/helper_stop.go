package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// stopper stops the threads of processes, but for the one by which the driver works in a process, its restore thread.
//
// A process whose device memory is in host memory must run no code of its program: some calls of the driver, cuStreamQuery for one, do not wait for the driver's lock and read what
// is not mapped then. CRIU's plugin for CUDA stops the threads for the same reason (plugins/cuda/cuda_plugin.c, resume_device). The signals of a restore thread are blocked while it
// works: it is the only one that could handle them.
//
// Threads are stopped by ptrace(2), which wants all calls from one thread. The kernel lets the threads go when that one ends, whatever state they are in: so does the helper's death.
type stopper struct {
	api     DriverAPI
	calls   chan func()
	tracer  int                  // id of the thread that makes the calls
	stopped map[int]map[int]bool // threads by process: whether they have been seen to stand still
	settled map[int]int          // restore threads by process, which run
	prefix  string               // of the driver's device nodes, see disown
}

func newStopper(api DriverAPI) *stopper {
	return &stopper{api: api, stopped: map[int]map[int]bool{}, settled: map[int]int{}, prefix: DeviceNodes}
}

// stopTime bounds how long threads may take to stand still.
const stopTime = 10 * time.Second

// do has the tracing thread call f.
func (s *stopper) do(f func()) {
	if s.calls == nil {
		s.calls = make(chan func())
		began := make(chan int)
		go trace(s.calls, began, s.stopped)
		s.tracer = <-began
	}
	done := make(chan struct{})
	s.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// burial is how often threads are looked at that may have ended while they were stopped.
const burial = 50 * time.Millisecond

// trace makes calls by one thread, which then ends. Between calls it waits for the threads of stopped that have ended.
func trace(calls <-chan func(), began chan<- int, stopped map[int]map[int]bool) {
	runtime.LockOSThread()            // for good: the thread ends with the goroutine
	if unix.Gettid() == os.Getpid() { // the first thread does not end before the process
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			trace(calls, began, stopped)
		}()
		<-ended
		runtime.UnlockOSThread()
		return
	}
	began <- unix.Gettid()
	tick := time.NewTicker(burial)
	defer tick.Stop()
	for {
		select {
		case f, more := <-calls:
			if !more {
				return
			}
			f()
		case <-tick.C:
			bury(stopped)
		}
	}
}

// bury waits for traced threads that have ended: before that, the first process of a pid namespace does not end, and nobody hears that the container was killed. Others are left as they are.
func bury(stopped map[int]map[int]bool) {
	for _, tids := range stopped {
		for tid := range tids {
			if !dead(tid) {
				continue
			}
			if got, err := unix.Wait4(tid, nil, unix.WALL|unix.WNOHANG, nil); got == tid || err != nil {
				delete(tids, tid)
			}
		}
	}
}

// stop has all threads of the processes stop. They may be in a frozen cgroup: they stand still, at the latest, when it is thawed, before they run any code. A process that has ended is passed over.
func (s *stopper) stop(pids []int) (err error) {
	s.do(func() {
		for _, pid := range pids {
			if s.stopped[pid] == nil {
				s.stopped[pid] = map[int]bool{}
				err = errors.Join(err, s.seize(pid))
			}
		}
	})
	return err
}

// seize stops the threads of a process that are not stopped yet.
func (s *stopper) seize(pid int) error {
	for range 100 { // threads start threads
		fresh := 0
		for _, tid := range threads(pid) {
			if _, known := s.stopped[pid][tid]; known || tid == s.settled[pid] {
				continue
			}
			fresh++
			err := unix.PtraceSeize(tid)
			if err == nil {
				s.stopped[pid][tid] = false
				err = unix.PtraceInterrupt(tid)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("stop thread %d of process %d: %w", tid, pid, err)
			}
		}
		if fresh == 0 {
			return nil
		}
	}
	return fmt.Errorf("stop process %d: it goes on starting threads: %w", pid, errdefs.ErrUnavailable)
}

// settle waits until the threads of stopped processes stand still, and lets each restore thread go. Of processes that are not stopped it waits for nothing.
func (s *stopper) settle(pids []int) (err error) {
	s.do(func() {
		for _, pid := range pids {
			if s.stopped[pid] != nil && s.settled[pid] == 0 {
				err = errors.Join(err, s.settleOne(pid))
			}
		}
	})
	return err
}

func (s *stopper) settleOne(pid int) error {
	if err := s.await(pid); err != nil {
		return err
	}
	tid, ok := s.api.RestoreThread(pid)
	if !ok { // it uses the driver no more
		s.free(pid)
		return nil
	}
	if !s.stopped[pid][tid] {
		return fmt.Errorf("stop process %d: its thread %d, by which the driver works, does not stand still: %w", pid, tid, errdefs.ErrInternal)
	}
	delete(s.stopped[pid], tid)
	s.settled[pid] = tid
	return detach(tid)
}

// await waits until all threads of a process stand still.
func (s *stopper) await(pid int) error {
	for deadline := time.Now().Add(stopTime); ; time.Sleep(200 * time.Microsecond) {
		if err := s.seize(pid); err != nil {
			return err
		}
		moving := 0
		for tid, still := range s.stopped[pid] {
			if still {
				continue
			}
			switch still, err := stands(tid); {
			case err != nil:
				delete(s.stopped[pid], tid) // it has ended
			case still:
				s.stopped[pid][tid] = true
			default:
				moving++
			}
		}
		if moving == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("stop process %d: %d of its threads do not stand still after %s: %w", pid, moving, stopTime, errdefs.ErrUnavailable)
		}
	}
}

// stands reports whether a traced thread stands still. An error: it is gone. Source: ptrace(2), PTRACE_EVENT_STOP.
func stands(tid int) (bool, error) {
	var status unix.WaitStatus
	got, err := unix.Wait4(tid, &status, unix.WALL|unix.WNOHANG, nil)
	switch {
	case err != nil:
		return false, err
	case got == 0 && dead(tid): // its leader is not told of before all threads have been waited for
		return false, unix.ESRCH
	case got == 0:
		return false, nil
	case !status.Stopped():
		return false, unix.ESRCH
	case int(status)>>16 == unix.PTRACE_EVENT_STOP:
		return true, nil
	}
	return false, unix.PtraceCont(tid, int(status.StopSignal())) // a signal that was on its way: it is delivered, and the stop follows
}

// dead reports whether a thread has ended, whether or not it has been waited for, or is ending: it stands still no more then. The last thread of a pid namespace's first process does not end
// before the namespace's other processes have been waited for, those that are traced by their tracer. Source: proc_pid_stat(5), PF_EXITING of the kernel's linux/sched.h.
func dead(tid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(tid), "stat"))
	if err != nil {
		return true
	}
	const state, flags, exiting = 0, 6, 0x4
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= flags {
		return true
	}
	set, err := strconv.ParseUint(fields[flags], 10, 64)
	return err != nil || set&exiting != 0 || strings.Contains("ZX", fields[state])
}

// detach lets a thread that stands still go on.
func detach(tid int) error {
	if err := unix.PtraceDetach(tid); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("let thread %d go on: %w", tid, err)
	}
	return nil
}

// quietly calls f while the restore threads of stopped processes have their signals blocked.
func (s *stopper) quietly(pids []int, f func()) (err error) {
	masks := map[int]uint64{}
	s.do(func() {
		for _, pid := range pids {
			if tid := s.settled[pid]; tid != 0 {
				mask, failed := setMask(tid, ^uint64(0)&^(1<<(unix.SIGTRAP-1)))
				err = errors.Join(err, failed)
				masks[tid] = mask
			}
		}
	})
	if err == nil {
		f()
	}
	s.do(func() {
		for tid, mask := range masks {
			if _, failed := setMask(tid, mask); failed != nil && !errors.Is(failed, unix.ESRCH) {
				err = errors.Join(err, failed)
			}
		}
	})
	return err
}

// setMask sets the signals that a thread has blocked, and returns those it had. The thread is not traced before or after.
func setMask(tid int, mask uint64) (before uint64, err error) {
	fail := func(err error) (uint64, error) {
		return 0, fmt.Errorf("block the signals of thread %d: %w", tid, err)
	}
	if err := unix.PtraceSeize(tid); err != nil {
		return fail(err)
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return fail(err)
	}
	for deadline := time.Now().Add(stopTime); ; time.Sleep(50 * time.Microsecond) {
		still, err := stands(tid)
		if err != nil {
			return fail(err)
		}
		if still {
			break
		}
		if time.Now().After(deadline) {
			return fail(errdefs.ErrUnavailable)
		}
	}
	if err := signalMask(unix.PTRACE_GETSIGMASK, tid, &before); err != nil {
		return fail(errors.Join(err, detach(tid)))
	}
	if err := signalMask(unix.PTRACE_SETSIGMASK, tid, &mask); err != nil {
		return fail(errors.Join(err, detach(tid)))
	}
	return before, detach(tid)
}

// signalMask reads or sets, by a request of ptrace(2), the signals that a traced thread has blocked.
func signalMask(request, tid int, mask *uint64) error {
	if _, _, code := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), unsafe.Sizeof(*mask), uintptr(unsafe.Pointer(mask)), 0, 0); code != 0 {
		return code
	}
	return nil
}

// letGo has processes go on whose threads stand still.
func (s *stopper) letGo(pids []int) {
	s.do(func() {
		for _, pid := range pids {
			s.free(pid)
		}
	})
}

// free is letGo of one process, for the tracing thread.
func (s *stopper) free(pid int) {
	for tid, still := range s.stopped[pid] {
		if still || s.awaitOne(tid) {
			_ = detach(tid) // else it has ended
		}
	}
	delete(s.stopped, pid)
	delete(s.settled, pid)
}

// awaitOne waits for one thread, which may not have stood still yet.
func (s *stopper) awaitOne(tid int) bool {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Microsecond) {
		if still, err := stands(tid); still || err != nil {
			return err == nil
		}
	}
	return false
}

// yield lets all threads go, also those that do not stand still yet, and returns when nothing is traced any more.
func (s *stopper) yield(ctx context.Context) error {
	if s.calls == nil {
		return nil
	}
	close(s.calls)
	s.calls, s.stopped, s.settled = nil, map[int]map[int]bool{}, map[int]int{}
	for {
		if _, err := os.Stat(filepath.Join("/proc/self/task", strconv.Itoa(s.tracer))); err != nil {
			return nil //nolint:nilerr // it has ended
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("let processes go on: %w", context.Cause(ctx))
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// threads lists those of a process; none of one that has ended.
func threads(pid int) (tids []int) {
	entries, _ := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	slices.Sort(tids)
	return tids
}
