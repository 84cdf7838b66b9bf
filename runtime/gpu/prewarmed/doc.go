// Package prewarmed keeps a snapshot's device memory loaded, so that a restore only attaches it.
//
// For each snapshot a process holds the descriptors of memory that a keeper (package keeper) has made and filled. The keeper has ended: memory
// lives as long as a process has its descriptor. So this process has no context on a device, opens no driver and cannot hang in one.
// It is started by `cryo prewarm --gpu` ([Dir.Begin], [Beginning.Keep]) with [Serve], and ends when a restore has used what it has, or when it is told to.
//
// # Directory
//
// <root>/warm.gpu, root's alone, has a directory for each:
//
//	prewarmed.json  [Info]
//	socket        of the process
//
// A directory gets its name when everything is loaded. One that is called new-… is being made by the process that holds <root>/warm.gpu.lock,
// or was left by one that died. A directory is ignored if nobody listens at its socket: after a reboot, or when the process was killed.
//
// # Protocol
//
// Messages of JSON with descriptors (package runtime/channel). Each side checks that the other has its own user. A restore leases the memory,
// which gives it copies of all descriptors; others that ask meanwhile are told so. On "use" the process closes its own descriptors and ends. A restore
// that hangs up before has not touched the memory, and the next may lease it.
package prewarmed
