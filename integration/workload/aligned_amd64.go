package main

// readAligned reads a byte from fd while the stack pointer is a multiple of 4096.
func readAligned(fd int)
