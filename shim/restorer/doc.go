// Package restorer is what is said with the restore process and the checkpoint process. Both are the cryo program, which only the shim starts. What they do is in the packages
// shim/restore and shim/take, which the shim does not link: see shim/README.md.
//
// The shim starts a restore process ([Start]) for a container whose annotation or image asks for a restore, and for one that cryo restore has made, whose task's options have
// an [Order] ([RequestIn]). The process finds a snapshot, prepares it for the container, and pulls what is missing of it while the container runs. Until the shim says that the container
// runs ([Process.Running]), the end of the command calls the restore off. Before the container's first instruction, the shim asks the process whether the restore has been called off
// ([Process.Commit]).
//
// The shim starts a checkpoint process ([Take]) for a checkpoint whose options have a [CheckpointOrder], as cryo checkpoint asks for, and for one of a container whose annotation
// [CheckpointAnnotation] says where to, when a client that knows nothing of cryo, such as the kubelet, asks for it. The process has the shim dump the container and hold it ([Hold]), makes a
// snapshot of what comes, and decides whether the container goes on or ends. Without the shim, or a client that waits, it undoes what it did.
//
// Each process has one channel, to the shim. To a command it reports over a socket in the command's working directory ([Report]).
package restorer
