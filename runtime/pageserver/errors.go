package pageserver

import "fmt"

// ProtocolError says that what CRIU sends is not understood. A dump to files does not need it to be.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "receive memory from CRIU: " + e.Reason }

// Hint says what to do.
func (e *ProtocolError) Hint() string {
	return "this version of CRIU is not known; use one of those that cryo doctor accepts"
}

func misunderstood(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}
