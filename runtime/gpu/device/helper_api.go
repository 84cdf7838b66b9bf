package device

import "time"

// DriverAPI is what [ServeHelper] works with.
type DriverAPI interface {
	Facts() (Facts, error)
	State(pid int) ProcessState
	// Do makes the call for one process and gives the driver's result. It is used from several goroutines at once.
	Do(pid int, c DriverCall) int
	// RestoreThread returns the id, in the helper's pid namespace, of the thread by which the driver works in a process. It answers also where all threads of the process stand still.
	RestoreThread(pid int) (tid int, ok bool)
	// Name is the result's name in cuda.h.
	Name(code int) string
}

// Function is one of the driver's, by its name.
type Function string

// The functions that change a process.
const (
	FunctionLock       Function = "cuCheckpointProcessLock"
	FunctionCheckpoint Function = "cuCheckpointProcessCheckpoint"
	FunctionRestore    Function = "cuCheckpointProcessRestore"
	FunctionUnlock     Function = "cuCheckpointProcessUnlock"
)

// DriverCall is what [DriverAPI] is to do with a process.
type DriverCall struct {
	Function Function
	Timeout  time.Duration // of Lock, 1 ms or more
	Pairs    []DevicePair  // of Restore
}
