// Package restorer is what is said with the restore process: the cryo program, which finds a snapshot, prepares it for a container, and pulls what is missing of
// it while the container runs. What the process does is package shim/restore, which the shim does not link: see shim/README.md.
//
// The shim starts the process ([Start]) for a container whose annotation or image asks for a restore, and for one that cryo restore has made, whose task's options have
// an [Order] ([RequestIn]). The process has one channel, to the shim. To the command it reports on a FIFO ([Report]).
//
// For a container whose annotation [CheckpointAnnotation] says where to, the shim starts the checkpoint process ([Take]) when a client that knows nothing of cryo, such as
// the kubelet, asks for a checkpoint. That is the cryo program too, which takes a snapshot and sends it to a registry; see package shim/take. It gets one request and gives
// one answer. Without the shim, or a client that waits, it undoes what it did.
//
// Until the shim says that the container runs ([Process.Running]), the end of the command calls the restore off. Before the
// container's first instruction, the shim asks the process whether the restore has been called off ([Process.Commit]).
package restorer
