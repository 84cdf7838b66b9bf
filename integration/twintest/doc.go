// Package twintest changes memory that is being filled, in all ways a process can, and compares it with memory of the same content
// that is not. It is for tests.
//
// It forks without exec, which Go does not know: while it runs, the process makes no garbage, and what runs in a child takes
// nothing of Go's runtime.
package twintest
