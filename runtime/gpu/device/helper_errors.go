package device

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// ErrNoHelper is the kind of the error that there is no cryo-gpu-keeper. It wraps FailedPrecondition.
var ErrNoHelper = fmt.Errorf("there is no cryo-gpu-keeper: %w", errdefs.ErrFailedPrecondition)

// noHelper returns the error that there is no cryo-gpu-keeper at path, or that none was found where path says.
func noHelper(path string, err error) error {
	return failure.New(ErrNoHelper, "install cryo-gpu-keeper beside containerd-shim-cryo-v1 and cryo, or into a directory of PATH", "find cryo-gpu-keeper (%s): %w", path, err)
}

// Fault is what is wrong with a driver.
type Fault string

// The faults there are.
const (
	FaultAbsent  Fault = "absent"  // no libcuda.so.1, or no libnvidia-ml.so.1
	FaultOld     Fault = "old"     // the checkpoint calls are not in it
	FaultRefused Fault = "refused" // a call of initialisation failed
)

// UnusableError says that this host's NVIDIA driver cannot be used. Its kind is FailedPrecondition.
type UnusableError struct {
	Fault   Fault  `json:"fault"`
	Call    string `json:"call,omitempty"` // that failed, or the function or library that is missing
	Code    int    `json:"code,omitempty"` // CUresult, or nvmlReturn_t for calls of NVML
	Name    string `json:"name,omitempty"`
	Message string `json:"message"`
}

func (e *UnusableError) Error() string { return "use the NVIDIA driver: " + e.Message }

// Hint returns what to do.
func (e *UnusableError) Hint() string {
	switch {
	case e.Fault == FaultAbsent:
		return "install NVIDIA's driver, 580 or later, with its CUDA and NVML libraries where the loader finds them (ldconfig -p)"
	case e.Fault == FaultOld:
		return "install NVIDIA's driver 580 or later"
	case e.Code == systemNotReady:
		return "start nvidia-fabricmanager (systemctl start nvidia-fabricmanager)"
	case e.Code == driverMismatch, e.Code == libraryMismatch:
		return "the driver's libraries and kernel module are of different versions: load the new module, or restart the host"
	default:
		return "see whether nvidia-smi works, and the kernel's log"
	}
}

// Unwrap returns the kind.
func (e *UnusableError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Codes of cuInit and nvmlInit that a user can do something about. Sources: CUresult in cuda.h, nvmlReturn_t in nvml.h.
const (
	systemNotReady  = 802
	driverMismatch  = 803
	libraryMismatch = 18
)

// DiedError says that the helper, or the keeper, ended without being asked to, or was killed because it did not answer. What had been done to processes stays done. Its
// kind is Aborted.
type DiedError struct {
	How    string        // "signal: killed"
	Last   string        // the last it wrote on standard error
	Silent time.Duration // for which it had not answered; 0: that is not why
}

func (e *DiedError) Error() string {
	text := fmt.Sprintf("cryo-gpu-keeper has died (%s)", e.How)
	if e.Silent > 0 {
		text = fmt.Sprintf("the driver has not answered within %s, and cryo-gpu-keeper was killed", e.Silent)
	}
	if e.Last != "" {
		text += ": " + e.Last
	}
	return text
}

// Hint returns what to do.
func (e *DiedError) Hint() string {
	if e.Silent > 0 {
		return "see whether nvidia-smi answers, and the kernel's log for messages of the driver (NVRM, Xid)"
	}
	return "try again; see the kernel's log for what has ended it"
}

// Unwrap returns the kind.
func (e *DiedError) Unwrap() error { return errdefs.ErrAborted }

// CallError says that a call of the driver failed, whoever made it. Its kind is Aborted.
type CallError struct {
	Call string `json:"call"` // cuMemImportFromShareableHandle, or what it was made for
	Code int    `json:"code"` // CUresult
	Name string `json:"name"` // its name in cuda.h
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// Hint returns where the driver tells more.
func (e *CallError) Hint() string {
	switch e.Code {
	case OutOfMemory:
		return "see with nvidia-smi who uses the GPU's memory"
	case deviceUnavailable:
		return "another process has the GPU to itself: set its compute mode to DEFAULT (nvidia-smi -c DEFAULT)"
	}
	return "see the kernel's log for messages of the driver (NVRM, Xid)"
}

// Unwrap returns the kind.
func (e *CallError) Unwrap() error { return errdefs.ErrAborted }
