// Package shim is containerd's side of cryo: the task service of the stock runc shim with checkpoint and restore
// taken over.
//
// The stock service is embedded, so whatever is not overridden here behaves as in containerd-shim-runc-v2. Overridden are
//
//	Create      options of every kind, CRIU's configuration, checks before a restore, this host's GPUs
//	Start       restores: CRIU's reason, the cgroup, OOM events, temporary directories, GPUs
//	Checkpoint  package runtime/checkpoint, without the lock that State needs; GPUs by package runtime/gpu
//	Resume      of a container that was paused for a checkpoint: its GPUs
//	State answers while a restore runs
//	Stats       of restored containers
//	Kill, Pause, Resume, Update, Delete  in order with a dump that is under way
package shim
