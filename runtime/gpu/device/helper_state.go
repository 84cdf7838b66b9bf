package device

// ProcessState is where a process stands with the driver.
type ProcessState string

// The states there are.
const (
	StateNone         ProcessState = "none"         // no CUDA, or no such process
	StateRunning      ProcessState = "running"      // calls pass
	StateLocked       ProcessState = "locked"       // calls wait
	StateCheckpointed ProcessState = "checkpointed" // calls wait, and device memory is in host memory
	StateFailed       ProcessState = "failed"       // the driver has given the process up
)

// Outcome is how the driver's call for one process ended.
type Outcome struct {
	PID     int     `json:"pid"`
	Seconds float64 `json:"seconds"`
	Call    string  `json:"call"`           // "cuCheckpointProcessLock"
	Code    int     `json:"code"`           // CUresult, 0: done
	Name    string  `json:"name,omitempty"` // "CUDA_ERROR_NOT_READY"
}

// Codes of the driver that mean something in particular here. Source: CUresult in cuda.h.
const (
	InvalidValue      = 1 // restore: the pairs are not one to one over all devices of the process
	OutOfMemory       = 2
	deviceUnavailable = 46  // or it is in an exclusive mode
	IllegalState      = 401 // the call does not fit the process's state
	NotReady          = 600 // lock: work was still running at the timeout; the process goes on
	NotSupported      = 801 // checkpoint: managed memory, for one; the process stays locked
	Unknown           = 999
)

// DevicePair says which device takes the place of which, by UUID.
type DevicePair struct {
	Old string `json:"old"`
	New string `json:"new"`
}
