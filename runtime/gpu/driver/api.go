package driver

import "time"

// API is what [Serve] works with.
type API interface {
	Facts() (Facts, error)
	State(pid int) State
	// Do makes the call for one process and gives the driver's result. It is used from several goroutines at once.
	Do(pid int, c Call) int
	// RestoreThread returns the id, in the helper's pid namespace, of the thread by which the driver works in a process. It answers also where all threads of the process stand still.
	RestoreThread(pid int) (tid int, ok bool)
	// Name is the result's name in cuda.h.
	Name(code int) string
}

// Function is one of the driver's, by its name.
type Function string

// The functions that change a process.
const (
	Lock       Function = "cuCheckpointProcessLock"
	Checkpoint Function = "cuCheckpointProcessCheckpoint"
	Restore    Function = "cuCheckpointProcessRestore"
	Unlock     Function = "cuCheckpointProcessUnlock"
)

// Call is what [API] is to do with a process.
type Call struct {
	Function Function
	Timeout  time.Duration // of Lock, 1 ms or more
	Pairs    []Pair        // of Restore
}
