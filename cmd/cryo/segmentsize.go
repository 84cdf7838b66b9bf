package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cryo-project/cryo/image/segment"
)

// Segments of a container that has little memory are small: each is made by one core, and sent over one connection to a registry that has one
// core for it, and there shall be several. With more memory there are several anyway, and a manifest lists no more than some thousands.
const (
	smallSegment = 64 << 20 // bytes
	littleMemory = 16 << 30 // bytes
)

// segmentSize chooses how much memory, in bytes, a segment covers of a container that has so many bytes, and perhaps memory on GPUs.
func segmentSize(gpus bool, memory int64) int64 {
	if gpus || memory > littleMemory {
		return segment.DefaultSize
	}
	return smallSegment
}

// resident is how much memory a process and its descendants have in RAM, in bytes. What several have counts for each, and those that have
// ended for nothing. Sources: proc_pid_statm(5), proc_tid_children(5), which CRIU needs as well.
func resident(pid int) (total int64) {
	var size, pages int64
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)); err == nil {
		if _, err := fmt.Sscan(string(text), &size, &pages); err == nil {
			total = pages * int64(os.Getpagesize())
		}
	}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // fails for bad patterns only
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				total += resident(child)
			}
		}
	}
	return total
}
