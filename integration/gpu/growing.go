package main

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

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
	var touching sync.WaitGroup
	part := (bytes/runtime.NumCPU() + growUnit) / growUnit * growUnit
	for begin := 0; begin < bytes; begin += part {
		touching.Go(func() {
			for at := begin; at < min(begin+part, bytes); at += os.Getpagesize() {
				if at%growUnit == 0 && !room() {
					os.Exit(3)
				}
				memory[at] = 1
			}
		})
	}
	touching.Wait()
	os.Exit(0)
}

// growUnit is after how many bytes of memory it is looked whether there is more.
const growUnit = 64 << 20

// room waits for some memory to be available: who provides it may take a while.
func room() bool {
	for range 150 {
		if meminfo("MemAvailable") > 3<<30 {
			return true
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}
