// Package restore has what must happen on a host before the processes of a snapshot can run there: the snapshot is found in the local store or a
// registry, its signatures are judged, it is compared with the host and with what it may have, CRIU's images are unpacked, and memory that is not here
// yet is pulled while the container runs. [Prepare] does all that in order, and changes nothing but the store and a working directory.
//
// [Serve] is the restore process, which does that for a container, and outlives the command: see package restorer.
package restore
