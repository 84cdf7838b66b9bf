package library

import (
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// noLibraryError returns the error that the library's file is not there, with the paths where it was looked for.
func noLibraryError(err error, paths ...string) error {
	return failure.New(errdefs.ErrFailedPrecondition,
		fmt.Sprintf("install %s into lib/cryo beside the directory of containerd-shim-cryo-v1 (make install does), or set %s to its path", File, Variable),
		"find %s (%s): %w", File, strings.Join(paths, ", "), err)
}

// BusyError says that work of the process on its GPUs did not come to an end in time; it goes on as before. Its kind is
// FailedPrecondition.
type BusyError struct {
	PID       int
	Timeout   time.Duration
	Capturing bool // a stream into a graph, which would be lost
}

func (e *BusyError) Error() string {
	if e.Capturing {
		return fmt.Sprintf("stop process %d before its GPUs: a CUDA graph was still being captured after %s", e.PID, e.Timeout)
	}
	return fmt.Sprintf("stop process %d before its GPUs: work still ran after %s", e.PID, e.Timeout)
}

// Hint returns how to give it more time.
func (e *BusyError) Hint() string {
	return "wait longer with --gpu-timeout or timeout of [gpu] in the configuration file"
}

// Unwrap returns the kind.
func (e *BusyError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// GoneError says that the process, or its library, is not there any more or does not answer. Its kind is Aborted.
type GoneError struct {
	PID  int
	Step string
	Err  error
	// Silent tells that there is a library, which has not answered: it may have memory of another process.
	Silent bool
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("%s: process %d: its library is gone: %v", e.Step, e.PID, e.Err)
}

// Hint returns what may have ended it.
func (e *GoneError) Hint() string {
	return "see whether the process has ended or has started another program, and the kernel's log"
}

// Unwrap returns the cause and the kind.
func (e *GoneError) Unwrap() []error { return []error{e.Err, errdefs.ErrAborted} }

// UnableError says why a process's memory cannot be handed over; it runs on. Its kind is NotImplemented.
type UnableError struct {
	PID    int
	Reason string // the library's words
}

func (e *UnableError) Error() string {
	return fmt.Sprintf("hand over GPU memory of process %d: %s", e.PID, e.Reason)
}

// Hint returns what is done instead.
func (e *UnableError) Hint() string {
	return "the driver saves this process's GPU memory instead, which takes longer"
}

// Unwrap returns the kind.
func (e *UnableError) Unwrap() error { return errdefs.ErrNotImplemented }

// protocolError returns the error that what came from the process is not what its library says: nothing of it is used.
func protocolError(pid int, problem error) error {
	return failure.New(errdefs.ErrDataLoss, "see whether the container was created by another version of cryo, and whether its programs can be trusted",
		"talk to the library in process %d: %w", pid, problem)
}

// names are those of CUresult that a hand-over can come to. Source: cuda.h.
var names = map[int]string{
	1:   "CUDA_ERROR_INVALID_VALUE",
	2:   "CUDA_ERROR_OUT_OF_MEMORY",
	3:   "CUDA_ERROR_NOT_INITIALIZED",
	4:   "CUDA_ERROR_DEINITIALIZED",
	101: "CUDA_ERROR_INVALID_DEVICE",
	201: "CUDA_ERROR_INVALID_CONTEXT",
	208: "CUDA_ERROR_ALREADY_MAPPED",
	304: "CUDA_ERROR_OPERATING_SYSTEM",
	400: "CUDA_ERROR_INVALID_HANDLE",
	401: "CUDA_ERROR_ILLEGAL_STATE",
	500: "CUDA_ERROR_NOT_FOUND",
	600: "CUDA_ERROR_NOT_READY",
	700: "CUDA_ERROR_ILLEGAL_ADDRESS",
	709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	719: "CUDA_ERROR_LAUNCH_FAILED",
	800: "CUDA_ERROR_NOT_PERMITTED",
	801: "CUDA_ERROR_NOT_SUPPORTED",
	802: "CUDA_ERROR_SYSTEM_NOT_READY",
	999: "CUDA_ERROR_UNKNOWN",
}

func name(code int) string {
	if n, ok := names[code]; ok {
		return n
	}
	return "an error without a name here"
}
