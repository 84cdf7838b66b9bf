package main

import (
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// growVariable makes the program touch so many bytes of memory and exit. It is a process of its own because it may be killed for it.
const growVariable = "CRYO_GPU_GROW"

// growing must be called first by the program.
func growing() {
	value := os.Getenv(growVariable)
	if value == "" {
		return
	}
	bytes, err := strconv.Atoi(value)
	if err != nil {
		os.Exit(2)
	}
	// If anybody is to be ended for want of memory, it shall be this one.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		os.Exit(1)
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // it is but faster
	var all sync.WaitGroup
	each := bytes / runtime.NumCPU()
	for n := range runtime.NumCPU() {
		all.Go(func() {
			for i := n * each; i < (n+1)*each; i += os.Getpagesize() {
				memory[i] = 1
			}
		})
	}
	all.Wait()
	os.Exit(0)
}
