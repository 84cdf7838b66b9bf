package trust

import "maps"

// Annotations of a container, or labels of its image, that name commands to be run in it as its own user, and how long each may take. A snapshot may have them: its program can run the commands itself.
const (
	BeforeCheckpoint = "io.cryo.before-checkpoint" // before it is frozen. If it fails there is no checkpoint
	AfterCheckpoint  = "io.cryo.after-checkpoint"  // when it goes on after that, whatever became of the checkpoint
	AfterRestore     = "io.cryo.after-restore"     // when it is restored. If it fails the restore has failed
	HookTimeout      = "io.cryo.hook-timeout"
)

// isHook reports whether an annotation is one of these.
func isHook(key string) bool {
	return key == BeforeCheckpoint || key == AfterCheckpoint || key == AfterRestore || key == HookTimeout
}

// HookLabels returns those labels of a container that name hooks. Clients of containerd give a container the labels of its image.
func HookLabels(labels map[string]string) map[string]string {
	kept := maps.Clone(labels)
	maps.DeleteFunc(kept, func(key, _ string) bool { return !isHook(key) })
	return kept
}
