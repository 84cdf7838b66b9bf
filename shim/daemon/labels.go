package daemon

// Labels of containers. package shim/restore has the first two as well.
const (
	// WorkLabel marks what a command makes until it is finished, with the command's working directory.
	WorkLabel = "io.cryo.work"
	// RestoredLabel names the snapshot that a container was made of, by its digest; ReferenceLabel by what it was called.
	RestoredLabel  = "io.cryo.snapshot"
	ReferenceLabel = "io.cryo.reference"
	// CheckpointLabel names the last snapshot that was taken while the container ran on, by its digest.
	CheckpointLabel = "io.cryo.checkpoint"
)
