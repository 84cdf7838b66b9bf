package gpu

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// deadlineError returns the error that processes had not finished their work on GPUs in time. DeadlineExceeded would mean that the caller has no more time.
func deadlineError(timeout time.Duration, working []string) error {
	return failure.New(errdefs.ErrFailedPrecondition,
		"wait longer with --gpu-timeout, annotation "+TimeoutAnnotation+" or timeout of [gpu] in the configuration file, or have long kernels return early by contrib/cuda/cryo_interrupt.cuh",
		"lock its GPUs: work still ran after %s: %s", timeout, list(working))
}

// capturingError returns the error that processes had not ended in time to capture a stream into a graph, which a hand-over would have cost them. They go on with it.
func capturingError(timeout time.Duration, working []string) error {
	return failure.New(errdefs.ErrFailedPrecondition,
		"try again when the program has captured its graphs, mostly at the end of its start, or wait longer with --gpu-timeout or annotation "+TimeoutAnnotation,
		"save its GPUs: a CUDA graph was still being captured after %s: %s", timeout, list(working))
}

// fallbackError returns the error that a process would go by the driver where all are to hand their memory over; nothing was done to it.
func fallbackError(p Process, reason string) error {
	return failure.New(errdefs.ErrFailedPrecondition,
		"leave --gpu-engine out, and the driver saves what is not handed over; containers hand over what they were made to, with the annotation "+EngineAnnotation+": keeper",
		"save its GPUs by the engine keeper: %s cannot hand its memory over: %s", p, reason)
}

// callError returns the error that a call of the driver failed for a process.
func callError(p cudaProcess, o device.Outcome) error {
	return fmt.Errorf("%s: %w", p.Process, &device.CallError{Call: o.Call, Code: o.Code, Name: o.Name})
}

// givenError returns the error that a process's memory is elsewhere, and it is not known where: the shim that had it has died.
func givenError(p Process) error {
	return failure.New(errdefs.ErrFailedPrecondition, "end the container, and restore it from a snapshot",
		"save its GPUs: %s waits for device memory that it has handed over before", p)
}

// foreignError returns the error that a process has pieces of device memory that it was given, and that have not become its own for want of room. The driver
// would save them and could not restore them.
func foreignError(p Process, pieces int) error {
	return failure.New(errdefs.ErrFailedPrecondition, "take the snapshot with cryo checkpoint and the engine keeper, or when 1 GiB is free on the device",
		"save its GPUs: %d pieces of device memory of %s are not its own yet: there was no room on the device", pieces, p)
}

// unsupportedError returns the error that a process uses what the driver cannot save; nothing has happened to it.
func unsupportedError(p Process, version string) error {
	return failure.New(errdefs.ErrNotImplemented,
		"create the container with the engine keeper and without the annotation "+ManagedAnnotation+"="+ManagedByDriver+": then what cudaMallocManaged and pools of managed memory allocate can be saved, and __managed__ variables of code that nvcc did not compress",
		"save its GPUs: %s uses managed memory of the driver's, most likely, which driver %s cannot save", p, version)
}

// stateError returns the error that something else has locked or checkpointed a process, or the driver has given it up.
func stateError(p Process, state device.ProcessState) error {
	hint := fmt.Sprintf("undo what has been done to it by others: cuda-checkpoint --toggle --pid %d", p.PID)
	if state == device.StateFailed {
		hint = "the driver cannot use the process any more: start it again"
	}
	return failure.New(errdefs.ErrFailedPrecondition, hint, "save its GPUs: the driver has %s in state %q already", p, state)
}

// SilentError says that a process has something on GPUs, and the driver does not tell its state. Its kind is Aborted.
type SilentError struct{ Process }

func (e *SilentError) Error() string {
	return fmt.Sprintf("save its GPUs: %s holds memory on a GPU, and the driver does not tell its state", e.Process)
}

// Hint returns what to do.
func (e *SilentError) Hint() string {
	return "try again when it has started; programs that use a GPU for graphics cannot be saved"
}

// Unwrap returns the kind.
func (e *SilentError) Unwrap() error { return errdefs.ErrAborted }

// endedError returns the error that a process came to its end while it was being saved.
func endedError(p Process) error {
	return failure.New(errdefs.ErrAborted, "see the kernel's log: device memory becomes memory of the process, and the kernel may have had none for it",
		"save its GPUs: %s has ended meanwhile", p)
}

// restlessError returns the error that the container went on starting processes that use GPUs.
func restlessError(names []string) error {
	return failure.New(errdefs.ErrAborted, "try again when it has settled", "save its GPUs: it goes on starting processes that use them, at last %s", list(names))
}

// MisfitError says why a snapshot's GPUs cannot be had here; nothing was started. Its kind is FailedPrecondition.
type MisfitError struct {
	Rule    string // as in package runtime/host
	Problem string
	advice  string
}

func (e *MisfitError) Error() string { return e.Problem + " (" + e.Rule + ")" }

// Hint returns what to do.
func (e *MisfitError) Hint() string { return e.advice }

// ByRule is Rule.
func (e *MisfitError) ByRule() string { return e.Rule }

// Unwrap returns the kind.
func (e *MisfitError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// noProcessError returns the error that processes which had something on GPUs are not there to get it back.
func noProcessError(all []record.GPUProcess) error {
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = fmt.Sprintf("process %d of the container (%s)", p.PID, p.Command)
	}
	return failure.New(errdefs.ErrDataLoss, "", "load its GPUs: the driver knows nothing of what was saved of %s", list(names))
}

// label names devices for people: by number where they are known, else by UUID.
func label(devices []device.Device, uuids []string) string {
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
