package image

import "runtime"

// AllCores is how many cores there are.
func AllCores() int { return runtime.GOMAXPROCS(0) }

// SpareCores is how many of all cores are left while a container is dumped or restored. CRIU has one thread, and the process that reads what it sends, or brings what it waits
// for, hardly needs more than the other half of a core: with two, one that hashed made a freeze of 1.6 s one of 2.8.
func SpareCores(all int) int {
	if all <= 2 {
		return 0
	}
	return all - 1
}

// HalfCores is half of the spare cores, for what takes as much again elsewhere: at a registry on the same machine, or at the writer of what is read.
func HalfCores(all int) int { return (SpareCores(all) + 1) / 2 }
