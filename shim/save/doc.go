// Package save takes snapshots of running containers. It is the client's side of a checkpoint: it examines the container and asks containerd for the checkpoint.
// The shim makes it (package runtime/checkpoint), and speaks to this process over a socket. Memory comes from CRIU, device memory from the shim's keeper; both are
// packed as they come. While the container stands still, its changed files are copied. Then it goes on, or ends when the snapshot is safe on disk. Each part is
// sent to a registry as soon as it is complete.
//
// If anything goes wrong, the container is afterwards as it was, or the error says that it is lost.
package save
