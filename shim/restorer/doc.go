// Package restorer is what is said with the restore process: the cryo program, which finds a snapshot, prepares it for a container, and pulls what is missing of
// it while the container runs. What the process does is package shim/restore, which the shim does not link: see shim/README.md.
//
// For a container whose annotation asks for a restore the shim starts the process ([Start]). For cryo restore the command does ([Begin]), and the process makes the
// container; the shim reaches it then by a socket in its working directory ([Join]), which lies beside CRIU's work directory that the process names to containerd. Only
// root can enter that directory or give a task such options, and annotations say nothing of it.
//
// For a container whose annotation [CheckpointAnnotation] says where to, the shim starts the checkpoint process ([Take]) when a client that knows nothing of cryo, such as
// the kubelet, asks for a checkpoint. That is the cryo program too, which takes a snapshot and sends it to a registry; see package shim/take. It gets one request and gives
// one answer. Without the shim, or a client that waits, it undoes what it did.
//
// Until the shim says that the container runs ([Process.Running]), the end of the command calls the restore off, and the process undoes it. Before the
// container's first instruction, the shim asks the process whether the restore has been called off ([Process.Commit]).
package restorer
