// Package cryo is cryo's interface for programs: it takes snapshots of containers, moves them, gets hosts ready for them, and has containerd's client restore them.
//
//	c, err := New(Options{})
//	taken, err := c.Checkpoint(ctx, "llm", "registry.example.com/snapshots/llm:ready", CheckpointOptions{Push: true, LeaveRunning: true})
//
// and on another host
//
//	ready, err := c.Prewarm(ctx, "registry.example.com/snapshots/llm:ready", PrewarmOptions{})
//	image, err := client.GetImage(ctx, ready.Image)
//	container, err := client.NewContainer(ctx, "llm", containerd.WithNewSnapshot("llm", image), containerd.WithNewSpec(oci.WithImageConfig(image)),
//		WithRestore("registry.example.com/snapshots/llm:ready", RestoreOptions{}))
//	task, err := container.NewTask(ctx, cio.LogFile("/var/log/llm"))
//	err = task.Start(ctx)
//
// # What must be installed
//
// The host has cryo's programs, runc, CRIU and containerd, as for the cryo command. The program itself runs as root, in the mount namespace of containerd. It uses the
// local store and the configuration that the command uses, side by side with it. It is not cryo: where a process of cryo's own is needed, [Options].Program is started.
//
// # Contexts
//
// The context of a call has containerd's namespace, as for containerd's client; without one it is "default". Every call ends soon when its context does, and has then
// undone what it had begun: after a [Client.Checkpoint] the container goes on. The error wraps the context's cause. What was pulled or pushed is kept for the next attempt.
// A [Client] may be used by several goroutines at once. Nothing is printed. Details go to the logger of package github.com/containerd/log, at level debug.
//
// # Errors
//
// The kind of an error is one of github.com/containerd/errdefs, or [ErrMisfit], [ErrLost] or [ErrBusy], which wrap one of these. [Hint] returns what to do about it, and [Rule] the rule
// that refused what was asked for, also of an error of containerd's client that cryo's shim has caused. The rules are in cmd/cryo/README.md and runtime/gpu/README.md.
//
// # What is stable
//
// The exported names of this package follow semantic versioning: within a major version, none goes or changes its meaning. Structs may get fields, whose zero value means what was
// before, and strings of results new values. Before version 1.0.0, a minor version may change them, and CHANGELOG.md says so. All other packages of this module may change at any time.
package cryo
