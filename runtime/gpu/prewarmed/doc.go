// Package prewarmed keeps a snapshot's device memory loaded, so that a restore only attaches it.
//
// A process per snapshot holds nothing but the descriptors of memory that a keeper has made and filled (package keeper), which has ended
// since: memory lives as long as somebody has its descriptor. So that process has no context on a device, opens no driver and cannot hang in one.
// It is started by `cryo prewarm --gpu` ([Dir.Begin], [Beginning.Keep]) with [Serve], and ends when a restore has used what it has, or when it is told to.
//
// # Directory
//
// <root>/warm.gpu, root's alone, has a directory for each:
//
//	prewarmed.json  [Info]
//	socket        of the process
//
// It has its name when all is loaded. What is called new-… is being made, by who holds <root>/warm.gpu.lock,
// or is left of who died. A directory whose socket nobody listens at counts for nothing: after a reboot, or when the process was killed.
//
// # Protocol
//
// Messages of JSON with descriptors (package runtime/channel). Both sides look at the other's user: it must be their own. A restore leases the memory,
// which gives it copies of all descriptors; who asks meanwhile is told so. By "use" the process lets go of its own and ends. Who hangs
// up before that has not touched the memory, and the next may lease it.
package prewarmed
