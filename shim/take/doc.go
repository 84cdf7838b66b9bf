// Package take takes snapshots of running containers. It is a checkpoint's sequence on the side of who wants one: the container is looked over, containerd is
// asked for the checkpoint, and the shim, which does it (package runtime/checkpoint), speaks to this process over a socket. Memory comes from CRIU, device memory
// from the shim's keeper, and is packed as it comes. While the container stands still, what it has changed in its files is copied. Then it goes on, or ends when
// the snapshot is safe on disk. A registry is sent each part as soon as it is complete.
//
// Whatever goes wrong, the container is afterwards as it was, or the error says that it is lost.
package take
