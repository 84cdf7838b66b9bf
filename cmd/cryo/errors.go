package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/shim/restore"
)

// usageError says that the command line makes no sense. Its kind is InvalidArgument.
type usageError struct {
	command     string
	problem     string
	suggestions []string
}

func (e *usageError) Error() string { return e.problem }

func (e *usageError) Hint() string {
	if len(e.suggestions) > 0 {
		return "did you mean " + strings.Join(e.suggestions, " or ") + "?"
	}
	return "see " + e.command + " --help"
}

func (e *usageError) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// noContainerError says that containerd has no such container. Its kind is NotFound.
type noContainerError struct{ name, namespace string }

func (e *noContainerError) Error() string {
	return fmt.Sprintf("find container %s: containerd's namespace %s has none of this name", e.name, e.namespace)
}

func (e *noContainerError) Hint() string {
	return "list them with ctr -n " + e.namespace + " containers ls, or name another namespace with --namespace"
}

func (e *noContainerError) Is(target error) bool { return target == errdefs.ErrNotFound }

// notRunningError says that the container has no process to take a snapshot of. Its kind is FailedPrecondition.
type notRunningError struct{ name, status string }

func (e *notRunningError) Error() string {
	return fmt.Sprintf("checkpoint %s: the container is %s, not running", e.name, e.status)
}

func (e *notRunningError) Hint() string { return "start it first: ctr task start, or nerdctl start" }

func (e *notRunningError) Is(target error) bool { return target == errdefs.ErrFailedPrecondition }

// runtimeError says that another runtime than cryo's runs the container. Its kind is FailedPrecondition.
type runtimeError struct{ name, runtime string }

func (e *runtimeError) Error() string {
	return fmt.Sprintf("checkpoint %s: it runs under %s, not under cryo's runtime", e.name, e.runtime)
}

func (e *runtimeError) Hint() string {
	return "start it with --runtime " + runtimeNames[1] + " (ctr run, nerdctl run); a container keeps the runtime it was created with"
}

func (e *runtimeError) Is(target error) bool { return target == errdefs.ErrFailedPrecondition }

// nameTakenError says that a container of this name exists. Its kind is AlreadyExists.
type nameTakenError struct{ name, namespace string }

func (e *nameTakenError) Error() string {
	return fmt.Sprintf("restore as %s: containerd's namespace %s has a container of this name", e.name, e.namespace)
}

func (e *nameTakenError) Hint() string { return "choose another with --name, or remove that one first" }

func (e *nameTakenError) Is(target error) bool { return target == errdefs.ErrAlreadyExists }

// daemonError says that containerd cannot be reached. Its kind is Unavailable, or PermissionDenied where it is not ours.
type daemonError struct {
	address string
	err     error
}

func (e *daemonError) Error() string {
	return fmt.Sprintf("reach containerd at %s: %v", e.address, e.err)
}

func (e *daemonError) Hint() string {
	if errors.Is(e.err, fs.ErrPermission) {
		return "run cryo as root (sudo): containerd's socket is root's"
	}
	return "see that containerd runs and that you may use its socket, or name it with --address"
}

func (e *daemonError) Unwrap() error { return e.err }

func (e *daemonError) Is(target error) bool {
	if errors.Is(e.err, fs.ErrPermission) {
		return target == errdefs.ErrPermissionDenied
	}
	return target == errdefs.ErrUnavailable
}

// failedError says that an operation did not come about and that all is as before. Its kind is its cause's, else Aborted.
type failedError struct {
	op, name string
	err      error
	hint     string
}

func (e *failedError) Error() string {
	text := e.err.Error()
	if strings.HasPrefix(text, e.op+" ") {
		return text // the cause says it already
	}
	return fmt.Sprintf("%s %s: %s", e.op, e.name, text)
}

func (e *failedError) Hint() string {
	switch {
	case e.hint != "":
		return e.hint
	case restore.Hint(e.err) != "", errors.Is(e.err, errInterrupted), errors.Is(e.err, context.Canceled):
		return "" // it is found there, or not needed
	case errdefs.IsUnavailable(e.err):
		return "see that containerd runs, and try again"
	case e.op == "checkpoint":
		return "try again; CRIU's log is criu-dump.log in the container's bundle, below /run/containerd/io.containerd.runtime.v2.task"
	}
	return "try again; containerd's log tells more"
}

func (e *failedError) Unwrap() error { return e.err }

func (e *failedError) left() (string, left) {
	return e.name, left{Running: e.op == "checkpoint" && !isLost(e.err)}
}

func (e *failedError) Is(target error) bool {
	return target == errdefs.ErrAborted && errors.Is(errdefs.Resolve(e.err), errdefs.ErrUnknown)
}

// noPushError says that the registry does not let us push. Nothing was done. Its kind is its cause's.
type noPushError struct {
	container string
	err       error
}

func (e *noPushError) Error() string { return e.err.Error() }

// Hint says what to do, and what can be done without the registry.
func (e *noPushError) Hint() string {
	hint := e.container + " runs on; without --push the snapshot is kept here, and cryo push sends it later"
	if more := restore.Hint(e.err); more != "" {
		hint = more + "\n" + hint
	}
	return hint
}

func (e *noPushError) Unwrap() error { return e.err }

func (e *noPushError) left() (string, left) { return e.container, left{Running: true} }

// keptError says that a snapshot is safe here, and that not all was done after that which should be. Its kind is its cause's.
type keptError struct {
	container string
	running   bool
	ref       string
	digest    string
	next      string // the command that does what is missing
	err       error
}

func (e *keptError) Error() string { return e.err.Error() }

// Hint says what there is, and how to go on.
func (e *keptError) Hint() string {
	became := "was ended"
	if e.running {
		became = "runs on"
	}
	hint := fmt.Sprintf("%s %s; the snapshot is safe as %s (%s); %s", e.container, became, e.ref, e.digest, e.next)
	if more := restore.Hint(e.err); more != "" {
		hint = more + "\n" + hint
	}
	return hint
}

func (e *keptError) Unwrap() error { return e.err }

func (e *keptError) left() (string, left) {
	return e.container, left{Running: e.running, Snapshot: e.digest}
}

// interruptedError says that a signal ended the work.
type interruptedError struct{ err error }

func (e *interruptedError) Error() string { return "interrupted: " + e.err.Error() }

func (e *interruptedError) Unwrap() []error { return []error{errInterrupted, e.err} }

// remoteError is an error of containerd. On its way here its text may have got the names of its kinds as lines of their own, which tell a user
// nothing.
type remoteError struct{ err error }

func (e *remoteError) Error() string {
	text := strings.ReplaceAll(e.err.Error(), "rpc error: code = Unknown desc = ", "")
	lines := strings.Split(text, "\n")
	kept := lines[:1]
	for _, line := range lines[1:] {
		if !slices.ContainsFunc(kinds, func(k error) bool { return k.Error() == strings.TrimSpace(line) }) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func (e *remoteError) Unwrap() error { return e.err }

// kinds are those that a shim's errors have.
var kinds = []error{
	errdefs.ErrUnknown, errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrPermissionDenied,
	errdefs.ErrResourceExhausted, errdefs.ErrFailedPrecondition, errdefs.ErrAborted, errdefs.ErrNotImplemented, errdefs.ErrInternal,
	errdefs.ErrUnavailable, errdefs.ErrDataLoss, errdefs.ErrUnauthenticated, context.DeadlineExceeded, context.Canceled,
}
