// Package prewarmed keeps a snapshot's device memory loaded, so that a restore only attaches it.
//
// For each snapshot a process holds the descriptors of memory that a keeper (package keeper) has made and filled. The keeper has ended: memory
// lives as long as a process has its descriptor. So this process has no context on a device, opens no driver and cannot hang in one.
// It is started by `cryo prewarm --gpu` ([Dir.Begin], [Beginning.Keep]) with [Serve], does nothing, and is killed when a restore uses what it has, or
// to make room.
//
// # Directory
//
// <root>/warm.gpu, root's alone, has a directory for each, with the file prewarmed.json ([Info]). A process that has something says so by a lock on a byte of it:
//
//	0  the process that keeps the memory, until it ends. The kernel tells its id (F_GETLK)
//	1  a restore that has a lease
//
// A restore that has the lease copies the descriptors out of the process (pidfd_getfd(2)). If it ends before it has killed the process, it has not touched the
// memory, and the next may lease it.
//
// A directory gets its name when everything is loaded. One that is called new-… is being made by the process that holds <root>/warm.gpu.lock,
// or was left by one that died. A directory is ignored if byte 0 is not locked: after a reboot, or when the process was killed.
package prewarmed
