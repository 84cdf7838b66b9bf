package gpu

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// Unfinished is a process that had work on GPUs past the deadline.
type Unfinished struct {
	Process
	GPUs string // for people
}

// late names processes, and the GPUs they work on.
func late(all []Unfinished) string {
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = fmt.Sprintf("%s on %s", p.Process, p.GPUs)
	}
	return list(names)
}

// DeadlineError says that processes had not finished their work on GPUs in time. Its kind is FailedPrecondition.
type DeadlineError struct {
	Timeout   time.Duration
	Processes []Unfinished
}

func (e *DeadlineError) Error() string {
	return fmt.Sprintf("lock its GPUs: work still ran after %s: %s", e.Timeout, late(e.Processes))
}

// Hint says how to give it more time, or to need less.
func (e *DeadlineError) Hint() string {
	return fmt.Sprintf("wait longer with --gpu-timeout, annotation %s or timeout of [gpu] in the configuration file, or have long kernels return early by contrib/cuda/cryo_interrupt.cuh", TimeoutAnnotation)
}

// Unwrap gives the kind; DeadlineExceeded would mean that the caller has no more time.
func (e *DeadlineError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// CapturingError says that processes had not ended in time to capture a stream into a graph, which a hand-over would have cost them. They
// go on with it. Its kind is FailedPrecondition.
type CapturingError struct {
	Timeout   time.Duration
	Processes []Unfinished
}

func (e *CapturingError) Error() string {
	return fmt.Sprintf("save its GPUs: a CUDA graph was still being captured after %s: %s", e.Timeout, late(e.Processes))
}

// Hint says what to do.
func (e *CapturingError) Hint() string {
	return fmt.Sprintf("try again when the program has captured its graphs, mostly at the end of its start, or wait longer with --gpu-timeout or annotation %s", TimeoutAnnotation)
}

// Unwrap gives the kind.
func (e *CapturingError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// FallbackError says that a process would go by the driver where all are to hand their memory over; nothing was done to it. Its kind is
// FailedPrecondition.
type FallbackError struct {
	Process
	Reason string
}

func (e *FallbackError) Error() string {
	return fmt.Sprintf("save its GPUs by the engine keeper: %s cannot hand its memory over: %s", e.Process, e.Reason)
}

// Hint says what to do.
func (e *FallbackError) Hint() string {
	return fmt.Sprintf("leave --gpu-engine out, and the driver saves what is not handed over; containers hand over what they were made to, with the annotation %s: keeper", EngineAnnotation)
}

// Unwrap gives the kind.
func (e *FallbackError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// CallError says that a call of the driver failed for a process. Its kind is Aborted.
type CallError struct {
	Process
	Call string // cuCheckpointProcessCheckpoint
	Code int    // CUresult
	Name string // its name in cuda.h
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s: %s: %s (%d)", e.Process, e.Call, e.Name, e.Code)
}

// Hint says where the driver tells more.
func (e *CallError) Hint() string {
	return "see the kernel's log for messages of the driver (NVRM, Xid)"
}

// Unwrap gives the kind.
func (e *CallError) Unwrap() error { return errdefs.ErrAborted }

// GivenError says that a process's memory is elsewhere, and nobody knows where: the shim that had it has died. Its kind is
// FailedPrecondition.
type GivenError struct{ Process }

func (e *GivenError) Error() string {
	return fmt.Sprintf("save its GPUs: %s waits for device memory that it has handed over before", e.Process)
}

// Hint says what to do.
func (e *GivenError) Hint() string { return "end the container, and restore it from a snapshot" }

// Unwrap gives the kind.
func (e *GivenError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// UnsupportedError says that a process uses what the driver cannot save; nothing has happened to it. Its kind is
// NotImplemented.
type UnsupportedError struct {
	Process
	Driver string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("save its GPUs: %s uses managed memory (cudaMallocManaged), most likely, which driver %s cannot save", e.Process, e.Driver)
}

// Hint says what to do.
func (e *UnsupportedError) Hint() string {
	return "have the program allocate with cudaMalloc or cudaMallocAsync instead of cudaMallocManaged"
}

// Unwrap gives the kind.
func (e *UnsupportedError) Unwrap() error { return errdefs.ErrNotImplemented }

// StateError says that something else has locked or checkpointed a process, or the driver has given it up. Its kind is
// FailedPrecondition.
type StateError struct {
	Process
	State driver.State
}

func (e *StateError) Error() string {
	return fmt.Sprintf("save its GPUs: the driver has %s in state %q already", e.Process, e.State)
}

// Hint says what to do.
func (e *StateError) Hint() string {
	if e.State == driver.Failed {
		return "the driver cannot use the process any more: start it again"
	}
	return fmt.Sprintf("undo what has been done to it by others: cuda-checkpoint --toggle --pid %d", e.PID)
}

// Unwrap gives the kind.
func (e *StateError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// SilentError says that a process has something on GPUs, and the driver does not tell its state. Its kind is Aborted.
type SilentError struct{ Process }

func (e *SilentError) Error() string {
	return fmt.Sprintf("save its GPUs: %s holds memory on a GPU, and the driver does not tell its state", e.Process)
}

// Hint says what to do.
func (e *SilentError) Hint() string {
	return "try again when it has started; programs that use a GPU for graphics cannot be saved"
}

// Unwrap gives the kind.
func (e *SilentError) Unwrap() error { return errdefs.ErrAborted }

// EndedError says that a process came to its end while it was being saved. Its kind is Aborted.
type EndedError struct{ Process }

func (e *EndedError) Error() string {
	return fmt.Sprintf("save its GPUs: %s has ended meanwhile", e.Process)
}

// Hint says what may have ended it.
func (e *EndedError) Hint() string {
	return "see the kernel's log: device memory becomes memory of the process, and the kernel may have had none for it"
}

// Unwrap gives the kind.
func (e *EndedError) Unwrap() error { return errdefs.ErrAborted }

// RestlessError says that the container went on starting processes that use GPUs. Its kind is Aborted.
type RestlessError struct{ Processes []string }

func (e *RestlessError) Error() string {
	return "save its GPUs: it goes on starting processes that use them, at last " + list(e.Processes)
}

// Hint says what to do.
func (e *RestlessError) Hint() string { return "try again when it has settled" }

// Unwrap gives the kind.
func (e *RestlessError) Unwrap() error { return errdefs.ErrAborted }

// MisfitError says why a snapshot's GPUs cannot be had here; nothing was started. Its kind is FailedPrecondition.
type MisfitError struct {
	Rule    string // as in package image/fit
	Problem string
	advice  string
}

func (e *MisfitError) Error() string { return e.Problem + " (" + e.Rule + ")" }

// Hint says what to do.
func (e *MisfitError) Hint() string { return e.advice }

// Unwrap gives the kind.
func (e *MisfitError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// NoProcessError says that processes which had something on GPUs are not there to get it back. Its kind is DataLoss.
type NoProcessError struct{ Processes []spec.GPUProcess }

func (e *NoProcessError) Error() string {
	names := make([]string, len(e.Processes))
	for i, p := range e.Processes {
		names[i] = fmt.Sprintf("process %d of the container (%s)", p.PID, p.Command)
	}
	return "load its GPUs: the driver knows nothing of what was saved of " + list(names)
}

// Unwrap gives the kind.
func (e *NoProcessError) Unwrap() error { return errdefs.ErrDataLoss }

// label names devices for people: by number where they are known, else by UUID.
func label(devices []driver.Device, uuids []string) string {
	names := slices.Clone(uuids)
	for i, uuid := range uuids {
		for _, d := range devices {
			if d.UUID == uuid {
				names[i] = fmt.Sprintf("GPU %d", d.Index)
			}
		}
	}
	if len(names) == 0 {
		return "a GPU"
	}
	return strings.Join(names, ", ")
}
