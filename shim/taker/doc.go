// Package taker is what the shim says with the checkpoint process: the cryo program, which takes a snapshot of a container and sends it to a registry when a client
// that knows nothing of cryo, such as the kubelet, asks for a checkpoint and an annotation of the container says where to. What the process does is in package
// shim/take, which the shim does not link.
//
// The shim starts the process, sends a [Request], and gets one answer. Either of the two hears by the end of the channel that the other has ended: without the shim,
// or a client that waits, the process undoes what it did.
package taker
