// Package load brings the device memory of a snapshot to the keeper that has taken memory on GPUs for it, while CRIU restores the
// container's processes.
//
// Two processes share the work, as in package fill. The restore process ([Memory.Serve]) opens the snapshot, and sends pieces through the
// keeper's ring. The shim ([Start], [Loading]) hands it two descriptors: one end of a channel between the two, and one end of the connection of package ring, whose
// other end the shim gives to the keeper.
package load
