// Package restore does what must happen on a host before the processes of a snapshot can run there.
//
// [Serve] is the restore process. [Prepare] finds the snapshot in the local store or a registry, judges its signatures, compares it with the host and with what it may have, and
// unpacks CRIU's images. It changes nothing but the store, a working directory, and the root file system of the container. Memory that is not here yet is pulled while the container
// runs.
//
// [Command] is cryo restore: it decides by the snapshot's manifest and config alone, makes the container, and has its shim restore it.
//
// # What a command hears
//
// This part holds what a checkpoint (package save) and a restore report to their caller: progress, bytes moved, and, when they fail, the state of the
// container.
//
// # Prewarming
//
// This part gets snapshots ready for fast restores: fetched, verified, their base images unpacked, their files in the page cache, and their device memory on GPUs
// (package runtime/gpu).
//
// # Inspection
//
// This part looks at snapshots without restoring them: who has signed one, whether it fits this host, what it asks of a host, and whether it is whole.
// A snapshot that only a registry has is looked at there.
package restore
