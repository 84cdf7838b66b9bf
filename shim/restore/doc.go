// Package restore does what must happen on a host before the processes of a snapshot can run there. [Prepare] finds the snapshot in the local store or a
// registry, judges its signatures, compares it with the host and with what it may have, and unpacks CRIU's images. It changes nothing but the store and a working
// directory. Memory that is not here yet is pulled while the container runs.
//
// [Serve] is the restore process, which does that for a container, and outlives the command: see package restorer. For a command ([Command]) it makes the container, too.
package restore
