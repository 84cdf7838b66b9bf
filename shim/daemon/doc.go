// Package daemon reaches containerd, and knows what of cryo's is there: containers, and the shims that run them.
//
// # Base images
//
// This part finds the image that a container stands on, and brings the one that a snapshot stands on to containerd.
package daemon
