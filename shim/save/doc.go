// Package save takes snapshots of running containers.
//
// [Serve] is the checkpoint process: it examines the container, and has its shim dump and hold it (package runtime/checkpoint). Memory comes from CRIU, device memory from the shim's
// keeper; both are packed as they come. While the container stands still, its changed files are copied. Then it goes on, or ends when the snapshot is safe on disk. Each part is sent to a
// registry as soon as it is complete.
//
// [Command] is cryo checkpoint: it asks containerd for the checkpoint, with an order for the shim, and shows how far it is.
//
// If anything goes wrong, the container is afterwards as it was, or the error says that it is lost.
package save
