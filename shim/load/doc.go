// Package load brings the device memory of a snapshot to the keeper that has taken memory on GPUs for it, while CRIU restores the
// container's processes.
//
// Two processes share the work, as in package fill. The shim ([Start], [Loading]) starts a process of its own program ([Serve]),
// which opens the snapshot, says that it is ready, and sends pieces through the keeper's ring. It has one end of a channel for what they
// say to each other, and one of the connection on which package ring speaks, whose other end the shim gives to the keeper.
//
// The restore process says what to load; see package order.
package load
