package criu

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// Rules for what CRIU refuses in words of its own source.
const (
	RuleRing      = "io-uring"
	RuleUserfault = "userfaultfd"
	RulePerf      = "perf-event"
	RuleQueue     = "message-queue"
	RuleTraced    = "traced-process"
)

// RingAnnotation of a container has its programs do without io_uring if its value is [RingRefused]: io_uring_setup returns ENOSYS, as on a kernel without io_uring.
const (
	RingAnnotation = "io.cryo.io-uring"
	RingRefused    = "refuse"
)

// kinds are descriptors that CRIU 4.2 cannot dump, by the target of their link in /proc/PID/fd.
var kinds = map[string]struct{ rule, what, hint string }{
	"anon_inode:[io_uring]": {RuleRing, "an io_uring",
		"start the container with the annotation " + RingAnnotation + "=" + RingRefused + " (ctr run --annotation, nerdctl run --annotation), or with containerd's default seccomp profile: programs such as Node.js then do without io_uring"},
	"anon_inode:[userfaultfd]": {RuleUserfault, "a userfaultfd", "have the program close it before the checkpoint"},
	"anon_inode:[perf_event]":  {RulePerf, "a perf event", "end the profiler, or have the program close it before the checkpoint"},
}

// CheckKinds refuses processes with descriptors that CRIU cannot dump.
func CheckKinds(pids []int) error {
	for _, pid := range pids {
		if refused := (process{pid: pid, descriptors: descriptors(pid)}).unknown(); refused != nil {
			return refused
		}
	}
	return nil
}

// unknown refuses descriptors that CRIU cannot dump.
func (p process) unknown() *failure.Error {
	const queues = 0x19800202 // MQUEUE_MAGIC of the kernel's ipc/mqueue.c
	var mounts map[int]bool
	for _, d := range p.descriptors {
		if k, is := kinds[d.target]; is {
			return failure.New(errdefs.ErrFailedPrecondition, k.hint, k.rule+": %s has %s (descriptor %s), which CRIU cannot save", name(p.pid), k.what, d.number).By(k.rule)
		}
		if !strings.HasPrefix(d.target, "/") || strings.Count(d.target, "/") > 1 { // a queue's name has one, see mq_overview(7)
			continue
		}
		i, err := inform(p.pid, d.number)
		if err != nil {
			continue
		}
		if mounts == nil {
			text, _ := os.ReadFile(dir(p.pid, "mountinfo"))
			mounts = parseMounts(string(text))
		}
		// mq_open opens a queue on a mount of the kernel's, which no process sees.
		var fs unix.Statfs_t
		if !mounts[i.mount] && unix.Statfs(dir(p.pid, "fd", d.number), &fs) == nil && fs.Type == queues {
			return failure.New(errdefs.ErrFailedPrecondition, "have the program close the queue before the checkpoint",
				RuleQueue+": %s has the POSIX message queue %s open, which CRIU cannot save", name(p.pid), d.target).By(RuleQueue)
		}
	}
	return nil
}

// parseMounts returns the ids of the mounts of /proc/PID/mountinfo.
func parseMounts(text string) map[int]bool {
	ids := map[int]bool{}
	for line := range strings.Lines(text) {
		word, _, _ := strings.Cut(line, " ")
		if id, err := strconv.Atoi(word); err == nil {
			ids[id] = true
		}
	}
	return ids
}

// CheckTraced refuses processes that another process traces (ptrace): a process has one tracer at a time, and CRIU would have to be it.
func CheckTraced(pids []int) error {
	for _, pid := range pids {
		text, err := os.ReadFile(dir(pid, "status"))
		if err != nil { // it has ended
			continue
		}
		_, after, _ := strings.Cut(string(text), "\nTracerPid:\t")
		line, _, _ := strings.Cut(after, "\n")
		if tracer, err := strconv.Atoi(line); err == nil && tracer != 0 {
			return failure.New(errdefs.ErrFailedPrecondition, fmt.Sprintf("end the debugger or tracer, or detach it, before the checkpoint: it is %s", name(tracer)),
				RuleTraced+": %s is traced by %s, and CRIU cannot save it meanwhile", name(pid), name(tracer)).By(RuleTraced)
		}
	}
	return nil
}
