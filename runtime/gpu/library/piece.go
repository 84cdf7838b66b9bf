package library

// granularity is cuMemGetAllocationGranularity of every NVIDIA GPU that has virtual memory management, bytes.
const granularity = 2 << 20

// maxPieces bounds what a process may say it has.
const maxPieces = 1 << 20

// State is what has become of a process's pieces.
type State uint32

// The states there are.
const (
	Whole  State = 0 // the program runs, and has all of them
	Closed State = 1 // it has all of them, and waits at the gate
	Given  State = 2 // they are elsewhere, and it waits at the gate
)

// String names the state for people.
func (s State) String() string {
	switch s {
	case Whole:
		return "whole"
	case Closed:
		return "closed"
	case Given:
		return "given"
	}
	return "unknown"
}

// Hello is what a library says of itself.
type Hello struct {
	State   State
	Pieces  int    // that it has
	Foreign int    // of these, still memory of another process: attached, and not yet made its own
	Version string // of the library
	Unable  string // why nothing can be handed over; empty: it can
	// Mistaken: its driver takes memory that comes by descriptors for another GPU's, so Attach would fail, and Make is the way.
	Mistaken bool
	// Stood: the gate was closed before, so the driver may have saved and restored the process.
	Stood bool
}
