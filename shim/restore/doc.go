// Package restore does what must happen on a host before the processes of a snapshot can run there.
//
// [Serve] is the restore process. [Prepare] finds the snapshot in the local store or a registry, judges its signatures, compares it with the host and with what it may have, and
// unpacks CRIU's images. It changes nothing but the store, a working directory, and the root file system of the container. Memory that is not here yet is pulled while the container
// runs.
//
// [Command] is cryo restore: it decides by the snapshot's manifest and config alone, makes the container, and has its shim restore it.
package restore
