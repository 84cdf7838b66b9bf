package trust

// Annotations of a container that name commands to be run in it as its own user, and how long each may take. A snapshot may have them: its program can run the commands itself.
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
