// Package cores says how much is done side by side while something else needs the processor. All of that follows from the number of cores, by one rule:
// what a container waits for has a core of its own, and both of two.
package cores

import "runtime"

// All is how many cores there are.
func All() int { return runtime.GOMAXPROCS(0) }

// Spare is how many of all cores are left while a container is dumped or restored. CRIU has one thread, and the process that reads what it sends, or brings what it waits
// for, hardly needs more than the other half of a core: with two, one that hashed made a freeze of 1.6 s one of 2.8.
func Spare(all int) int {
	if all <= 2 {
		return 0
	}
	return all - 1
}

// Half is half of the spare cores, for what takes as much again elsewhere: at a registry on the same machine, or at the writer of what is read.
func Half(all int) int { return (Spare(all) + 1) / 2 }
