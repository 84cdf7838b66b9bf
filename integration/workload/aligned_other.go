//go:build !amd64

package main

import "golang.org/x/sys/unix"

// readAligned reads a byte from fd. The stack pointer is whatever it is.
func readAligned(fd int) {
	var b [1]byte
	_, _ = unix.Read(fd, b[:])
}
