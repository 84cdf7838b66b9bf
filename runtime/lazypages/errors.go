package lazypages

import "fmt"

// ProtocolError says that what CRIU sends is not understood.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "receive processes from CRIU: " + e.Reason }

// Hint says what to do.
func (e *ProtocolError) Hint() string {
	return "this version of CRIU is not known; use one of those that cryo doctor accepts, or cryo restore --eager"
}

func misunderstood(format string, args ...any) error {
	return &ProtocolError{Reason: fmt.Sprintf(format, args...)}
}

// UnsupportedError says that this kernel cannot tell what processes do to their memory while it is filled.
type UnsupportedError struct{ Err error }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("this kernel has no userfaultfd for running processes: %v", e.Err)
}

// Unwrap gives the cause.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// Hint says what to do.
func (e *UnsupportedError) Hint() string {
	return "Linux 4.11 or later with CONFIG_USERFAULTFD, and root with CAP_SYS_PTRACE, are needed; without, memory is restored before the container runs"
}
