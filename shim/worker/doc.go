// Package worker is what the shim and its worker, the process that saves or restores, say to each other, and the files that they leave in a bundle.
//
// # Processes and messages
//
// This part is what is said with the restore process and the checkpoint process. Both are the cryo program, which only the shim starts. What they do is in the packages
// shim/restore and shim/save, which the shim does not link: see shim/README.md.
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
//
// # Filling
//
// This part fills the memory of containers from a snapshot while they run.
//
// Two processes share the work. The shim ([StartFilling], [Filling]) takes the place of CRIU's lazy-pages daemon: it gets each process's
// userfaultfd and passes it on to the restore process ([HostMemory.Serve]), which reads the snapshot and fills the memory. Both hold
// each userfaultfd. While one of them lives, a process that touches a missing page waits, and never reads zeros instead. So there is
// time to end the container if the other process dies, or if the snapshot turns out to be damaged.
//
// They speak over a channel of their own, in messages of JSON; see message.go.
//
// # Loading
//
// This part brings the device memory of a snapshot to the keeper that has taken memory on GPUs for it, while CRIU restores the
// container's processes.
//
// Two processes share the work, as in part Filling. The restore process ([DeviceMemory.Serve]) opens the snapshot, and sends pieces through the
// keeper's ring. The shim ([StartLoading], [Loading]) hands it two descriptors: one end of a channel between the two, and one end of the connection of package device, whose
// other end the shim gives to the keeper.
//
// # Notes
//
// This part has a file in the bundle of a restored container. The shim writes it, and cryo ps reads it: how much of the container's memory is there, and
// why the shim ended the container. It is removed with the bundle.
//
// # Output
//
// This part keeps the output of a restored container whose creator has named no place for it. The last 1 to 2 MiB are in files in the bundle, and are
// removed with it. A client that attaches gets all that comes from then on. The container never waits for a disk. It waits for a second at most for a client that
// attaches and does not read.
package worker
